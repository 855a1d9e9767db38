// The part of Kubo's RPC that tools use to add and read files: off by default. Formats and statuses
// are Kubo's, so that its clients work unchanged; POST /add and the content routes do the work.

import { type Failure, isFailure } from '../../core/failure.ts'
import { isFromAnotherSite } from '../../core/wire/http.ts'
import { refuseStranger } from '../add/upload-auth.ts'
import type { CostlyKind } from '../limits.ts'
import type { Route } from '../route.ts'
import { newRecord, noteToken } from '../wire/exchange.ts'
import { statusOf } from '../wire/problem.ts'
import { HttpRefusal, hasBody, type RequestContext, type RequestTarget } from '../wire/request.ts'
import { closeAfter, cutWhenStalled } from '../wire/write.ts'
import { addFiles, importCars, putBlocks } from './add.ts'
import { endLate, type KuboCall, type KuboDeps, type KuboError, sendJson } from './call.ts'
import { listLinks } from './ls.ts'
import { addPin, listPins, removePins } from './pins.ts'
import { exportDag, getArchive, getBlock, readPath } from './read.ts'

const prefix = '/api/v0/'

type Command = {
  readonly run: (call: KuboCall) => Promise<void>
  readonly takesBody?: true
  readonly costs?: CostlyKind
}

const commands: ReadonlyMap<string, Command> = new Map<string, Command>([
  ['add', { run: addFiles, takesBody: true, costs: 'uploads' }],
  ['block/get', { run: getBlock }],
  ['block/put', { run: putBlocks, takesBody: true, costs: 'uploads' }],
  ['cat', { run: readPath }],
  ['dag/export', { run: exportDag, costs: 'exports' }],
  ['dag/import', { run: importCars, takesBody: true, costs: 'uploads' }],
  ['get', { run: getArchive, costs: 'exports' }],
  ['ls', { run: listLinks }],
  ['pin/add', { run: addPin }],
  ['pin/ls', { run: listPins }],
  ['pin/rm', { run: removePins }],
  ['version', { run: sayVersion }],
])

const commandOf = ({ path }: RequestTarget): Command | undefined =>
  commands.get(path.slice(prefix.length).replace(/\/$/, ''))

async function sayVersion(call: KuboCall): Promise<void> {
  sendJson(call, { Version: call.deps.version, Commit: '', Repo: '', System: '', Golang: '' })
}

export function createKuboRoute(deps: KuboDeps): Route {
  return {
    name: 'rpc',
    at: /^\/api\/v0\//,
    costs: ({ target }) => commandOf(target)?.costs,
    answer: (context, next) => void answerCall(context, deps).catch(next),
  }
}

async function answerCall(context: RequestContext, deps: KuboDeps): Promise<void> {
  const { request, response, target, signal } = context
  const to = { request, response, deps }
  const { query } = target
  const requestRecord = newRecord(response, deps.tiers)
  const beforeMiss = () => deps.limits.charge('misses', request)
  const session = deps.retrieval.session({ signal, requestRecord, beforeMiss })
  response.setHeader('X-Content-Type-Options', 'nosniff')
  // Kubo sends no Cache-Control, so a cache might keep an error, or the pins that only a client
  // with a token may see.
  response.setHeader('Cache-Control', 'no-store')
  try {
    const command = commandOf(target)
    if (!command) return sendText(to, 404, '404 page not found')
    if (request.method !== 'POST') {
      response.setHeader('Allow', 'POST')
      return sendText(to, 405, '405 - Method Not Allowed')
    }
    // A page of another origin could post here with the browser's network position.
    const { origin, referer } = request.headers
    if (origin !== undefined || referer !== undefined || isFromAnotherSite(request.headers))
      return sendText(to, 403, '403 - Forbidden')
    refuseStranger(request, deps.reach)
    noteToken(response, deps.tokens.check(request.headers))
    // The other commands read only the query; an unused body may be endless.
    if (!command.takesBody && hasBody(request)) closeAfter(request, response)
    await command.run({ ...context, query, session, deps })
  } catch (error) {
    deps.respond.failed(request, response, error, {
      write: (failure) => sendError(to, failure),
      late: (failure) => endLate(to, failure, errorOf(failure)),
    })
  } finally {
    session.end()
  }
}

/** Statuses without an equivalent in Kubo: limits of this gateway, and a full disk. */
const ownStatuses: ReadonlySet<number> = new Set([408, 413, 429, 503, 507])

/**
 * Kubo sends 500 for failures and 400 for malformed requests; limits and denylists of this gateway
 * keep their statuses.
 */
function sendError(to: To, failure: Failure): void {
  if (failure.kind === 'refused')
    return sendText(to, 403, failure instanceof HttpRefusal ? `403 - Forbidden: ${failure.message}` : '403 - Forbidden')
  const own = statusOf(failure, 'api')
  const status = isClients(failure) ? 400 : failure.kind === 'denied' || ownStatuses.has(own) ? own : 500
  send(to, status, `${JSON.stringify(errorOf(failure))}\n`, 'application/json')
}

const isClients = (failure: Failure): boolean => isFailure(failure, 'malformed') && failure.source === 'client'

const errorOf = (failure: Failure): KuboError => ({
  Message: messageOf(failure),
  Code: isClients(failure) ? 1 : 0,
  Type: 'error',
})

/** Kubo's error has one text, so the answers of the providers are appended to the message. */
function messageOf({ message, facts }: Failure): string {
  const { outcomes = [] } = facts
  const said = outcomes.map(({ provider, outcome, detail }) => `${provider}: ${outcome}${detail ? `, ${detail}` : ''}`)
  return [message, ...said].join('; ')
}

const sendText = (to: To, status: number, text: string): void => send(to, status, `${text}\n`, 'text/plain')

/** Headers that are removed if the stream never began. */
const ofStreams = ['X-Stream-Output', 'X-Chunked-Output', 'X-Content-Length'] as const

type To = Pick<KuboCall, 'request' | 'response' | 'deps'>

function send({ request, response, deps }: To, status: number, text: string, type: string): void {
  if (!request.complete) closeAfter(request, response)
  for (const name of ofStreams) response.removeHeader(name)
  response.setHeader('Content-Type', type)
  response.setHeader('Content-Length', Buffer.byteLength(text))
  response.writeHead(status)
  response.end(text)
  cutWhenStalled(response, deps.stalledMs)
}
