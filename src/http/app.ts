// The public routes, as an Express router that anybody can mount, and what stands around every request.
import type { IncomingMessage, ServerResponse } from 'node:http'
import express, { type Router } from 'express'
import { Failure } from '../failure.ts'
import { type AnswerDeps, answerContent } from './answer.ts'
import { preflight } from './cors.ts'
import { createJsonRule } from './json-rule.ts'
import type { Limits } from './limits.ts'
import { closeAfter } from './linger.ts'
import { asFailure, sendProblem } from './problem.ts'
import { hasBody, readTarget } from './target.ts'

export type AppDeps = Omit<AnswerDeps, 'jsonRule'> & {
  readonly limits: Limits
  /** Routes that come with uploads, names and pages; each takes what is its own and calls next for the rest. */
  readonly routes?: readonly ((
    request: IncomingMessage,
    response: ServerResponse,
    next: (error?: unknown) => void,
  ) => void)[]
  readonly onError: (error: unknown) => void
}

const readMethods = 'GET, HEAD, OPTIONS'
// What may be held at once to see whether it is JSON: a few of the largest documents.
const leastLookedInto = 64 * 1024 * 1024

export function createApp(deps: AppDeps): Router {
  const { limits, mode, jsonMaxBytes, clock } = deps
  const jsonRule = createJsonRule({ heldBytes: Math.max(leastLookedInto, jsonMaxBytes), clock })
  const answering: AnswerDeps = { ...deps, jsonRule }
  const router = express.Router({ caseSensitive: true, strict: true })

  const refuse = (request: IncomingMessage, response: ServerResponse, failure: Failure, headers = {}): void => {
    if (hasBody(request)) closeAfter(request, response)
    const { accept } = request.headers
    sendProblem(response, failure, { mode, head: request.method === 'HEAD', accept, headers })
  }

  router.use((request, response, next) => {
    const refused = limits.enter(request, response)
    if (refused) return refuse(request, response, refused)
    try {
      const { path, search } = readTarget(request)
      // From here on it is a path, also where the client sent the whole URL.
      if (!request.url.startsWith('/')) request.url = search === '' ? path : `${path}?${search}`
    } catch (error) {
      return refuse(request, response, asFailure(error))
    }
    next()
  })

  for (const route of deps.routes ?? []) router.use(route)

  // By the raw URL: a router that decodes first would let an encoded slash look like one.
  router.use((request, response, next) => {
    if (!request.url.startsWith('/ipfs/')) return next()
    switch (request.method) {
      case 'GET':
      case 'HEAD': {
        const twice = /^\/ipfs\/(ipfs\/[^?]+.*)$/.exec(request.url)?.[1]
        if (twice !== undefined) return void moved(response, `/${twice}`)
        answerContent(request, response, answering).catch(next)
        return
      }
      case 'OPTIONS':
        return preflight(response, readMethods)
      default:
        return refuse(request, response, notAllowed(request.method), { Allow: readMethods })
    }
  })

  router.use((request, response) => {
    const failure = new Failure(
      'no-link',
      `there is nothing at ${JSON.stringify(request.url.split('?')[0])}; content is at /ipfs/<cid>`,
      {
        source: 'client',
        facts: { status: 404 },
      },
    )
    refuse(request, response, failure)
  })

  router.use((error: unknown, request: IncomingMessage, response: ServerResponse, _next: unknown) => {
    deps.onError(error)
    if (response.headersSent) response.destroy()
    else refuse(request, response, asFailure(error))
  })
  return router
}

const notAllowed = (method: string): Failure =>
  new Failure('unsupported', `${method} is not a method of content; it is read with GET`, {
    source: 'client',
    facts: { status: 405 },
  })

/** A link that was built with one /ipfs too many means the same thing without it. */
function moved(response: ServerResponse, to: string): void {
  response.setHeader('Access-Control-Allow-Origin', '*')
  response.writeHead(301, { Location: to, 'Content-Length': '0' }).end()
}
