// The public routes, as an Express router that anybody can mount, and what stands around every request.
import type { IncomingMessage, ServerResponse } from 'node:http'
import express, { type Router } from 'express'
import { Failure } from '../failure.ts'
import { type AnswerDeps, answerContent } from './answer.ts'
import { preflight } from './cors.ts'
import type { Limits } from './limits.ts'
import { asFailure, sendProblem } from './problem.ts'

export type AppDeps = AnswerDeps & {
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

export function createApp(deps: AppDeps): Router {
  const { limits, mode } = deps
  const router = express.Router({ caseSensitive: true, strict: true })

  router.use((request, response, next) => {
    const refused = limits.enter(request, response)
    if (refused) sendProblem(response, refused, { mode, head: request.method === 'HEAD' })
    else next()
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
        answerContent(request, response, deps).catch(next)
        return
      }
      case 'OPTIONS':
        return preflight(response, readMethods)
      default:
        return sendProblem(response, notAllowed(request.method ?? ''), { mode, headers: { Allow: readMethods } })
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
    sendProblem(response, failure, { mode, head: request.method === 'HEAD' })
  })

  router.use((error: unknown, request: IncomingMessage, response: ServerResponse, _next: unknown) => {
    deps.onError(error)
    if (response.headersSent) response.destroy()
    else sendProblem(response, asFailure(error), { mode, head: request.method === 'HEAD' })
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
