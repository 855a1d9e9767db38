// `cidgate status`: the state of a running gateway in words, from its admin address.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Announced, Provider, Router, Status, Tier, Times, Upstream } from '../../admin/dashboard/shape.ts'
import { wordsOf } from '../../core/failure.ts'
import { type Given, UsageError } from '../command.ts'
import { type Answer, type Connection, connected, sizeOf, statusWords } from './connection.ts'

const intervalMs = 2000

export async function statusCommand(given: Given): Promise<number> {
  const { values, io } = given
  if (values['watch'] && values['failures'])
    throw new UsageError('status: --watch shows the state; leave out --failures')
  return connected(given, 'admin', async (gateway) => {
    if (values['watch']) return watch(given, gateway)
    const status = await read(gateway, values['failures'] === true)
    if (values['failures'] && values['json']) for (const one of status.failures ?? []) gateway.print(one, undefined)
    else if (values['failures']) io.stdout.write(textOf(failureLines(status.failures ?? [])))
    else io.stdout.write(values['json'] ? jsonOf(status) : textOf(statusLines(gateway.at, status, Date.now())))
    return status.ready ? 0 : 1
  })
}

const textOf = (lines: readonly string[]): string => `${lines.join('\n')}\n`

function jsonOf({ history: _history, failures: _failures, ...facts }: ShownStatus): string {
  return `${JSON.stringify({ ...facts, waiting: facts.pending?.open })}\n`
}

/** Runs until it is interrupted. A terminal is redrawn; other outputs get one state after another. */
async function watch({ values, io }: Given, connection: Connection): Promise<number> {
  const { stdout } = io
  const isTerminal = 'isTTY' in stdout && stdout.isTTY === true
  const closing = new AbortController()
  stdout.once('close', () => closing.abort())
  stdout.on('error', () => closing.abort())
  let before: { readonly at: number; readonly total: number } | undefined
  let isReady = false
  while (!closing.signal.aborted) {
    let text: string
    try {
      const status = await read(connection, false)
      isReady = status.ready
      const now = { at: performance.now(), total: status.requests?.total ?? 0 }
      const perSecond = before && Math.max(0, (now.total - before.total) / ((now.at - before.at) / 1000))
      before = now
      text = values['json'] ? jsonOf(status) : textOf(statusLines(connection.at, status, Date.now(), perSecond))
    } catch (error) {
      isReady = false
      before = undefined
      text = `${connection.at}: no answer: ${wordsOf(error)}\n`
      if (values['json']) text = `${JSON.stringify({ error: text.trim() })}\n`
    }
    // Clears each line after its end, and the screen after the last one: nothing flickers.
    stdout.write(isTerminal && !values['json'] ? `\u001b[H${text.replaceAll('\n', '\u001b[K\n')}\u001b[J` : text)
    await sleep(intervalMs, undefined, { signal: closing.signal }).catch(() => {})
  }
  return isReady ? 0 : 1
}

async function read(connection: Connection, isComplete: boolean): Promise<ShownStatus> {
  const answer = await connection.ask('/status')
  const isTold = answer.statusCode === 200
  if (isTold || isComplete) return said<ShownStatus>(answer, [200])
  await answer.body.dump()
  return said<ShownStatus>(await connection.ask('/readyz'), [200, 503])
}

async function said<Said>(answer: Answer, statuses: readonly number[]): Promise<Said> {
  const text = await answer.body.text()
  if (!statuses.includes(answer.statusCode))
    throw new Error(`${answer.path}: ${statusWords(answer.statusCode, { detail: text.slice(0, 300) })}`)
  try {
    return JSON.parse(text) as Said
  } catch {
    throw new Error(`${answer.path} is not the response of a gateway; is that its admin address?`)
  }
}

/** /readyz may be the only path that is reachable, since it needs no token. */
export type ShownStatus = Pick<Status, 'ready' | 'draining' | 'uploads' | 'checks'> & Partial<Status>

/** `perSecond`: requests now, where they were counted before. */
export function statusLines(at: string, status: ShownStatus, now: number, perSecond?: number): string[] {
  const { ready, draining, uploads, checks, pending, requests, tiers = [], upstreams = [], providers = [] } = status
  const state = draining ? 'stopping' : ready ? 'ready' : 'not ready'
  const taken = uploads === undefined ? 'not known yet' : uploads ? 'yes' : 'no'
  const head = `${at}: ${state}; uploads can be confirmed: ${taken}; ${pending?.open ?? 'unknown'} pending at a provider`
  if (requests === undefined)
    return [head, ...checks.map(checkLine), '  tiers and upstreams are shown only with access to the admin address']
  // Checks of upstreams, providers and tiers are shown in their own lines.
  const named = new Set([...upstreams.map(({ name }) => `upstream ${name}`), ...providers.map(providerName)])
  const others = checks.filter(({ name, ok }) => !named.has(name) && !(ok && name.startsWith('tier ')))
  const rate = perSecond === undefined ? '' : `${perSecond.toFixed(1)} requests/s; `
  return [
    head,
    ...(status.alerts ?? []).flatMap(({ severity, what, next }) => [
      `  ${severity === 'bad' ? '!!' : '! '} ${what}`,
      `       next: ${next}`,
    ]),
    `  ${rate}${requestWords(requests)}`,
    ...others.map(checkLine),
    ...(status.processes ? [processLine(status.processes)] : []),
    ...(status.responses && status.responses.limitBytes > 0
      ? [
          `  ok  responses: ${fill(status.responses.bytes, status.responses.limitBytes)}, ${status.responses.items} cached`,
        ]
      : []),
    ...tiers.map(tierLine),
    ...(status.disk ? [`  disk: ${sizeOf(status.disk.freeBytes)} of ${sizeOf(status.disk.bytes)} free`] : []),
    ...upstreams.map((one) => upstreamLine(one, now)),
    ...(status.routers ?? []).map(routerLine),
    ...(status.found ?? []).map((one) => upstreamLine(one, now)),
    ...(status.announced ? announcedLines(status.announced, now) : []),
    ...providers.map(providerLine),
    ...(status.pins?.pins === undefined ? [] : [`  pins: ${status.pins.pins}, ${sizeOf(status.pins.bytes ?? 0)}`]),
    ...(pending && pending.open > 0 ? pendingLines(pending, now) : []),
  ]
}

const mark = (ok: boolean): string => (ok ? 'ok ' : 'BAD')

function checkLine({ name, ok, why }: Status['checks'][number]): string {
  return `  ${mark(ok)} ${name}${ok || why === undefined ? '' : `: ${why}`}`
}

const processLine = ({ wanted, answering, restarts }: NonNullable<Status['processes']>): string =>
  `  ${mark(answering >= wanted)} processes: ${answering} of ${wanted} answer${restarts > 0 ? `, ${restarts} were replaced` : ''}`

function requestWords({ total, byStatus, bySource, shed, rateLimited }: Status['requests']): string {
  const counts = Object.entries(byStatus).map(([status, count]) => `${count} ${status}`)
  const sources = Object.entries(bySource).map(([source, count]) => `${count} ${source}`)
  return [
    `requests since the start: ${total}${counts.length > 0 ? ` (${counts.join(', ')})` : ''}`,
    ...(sources.length > 0 ? [`content from: ${sources.join(', ')}`] : []),
    ...(shed > 0 ? [`${shed} shed`] : []),
    ...(rateLimited > 0 ? [`${rateLimited} rate-limited`] : []),
  ].join('; ')
}

const fill = (bytes: number, limit: number | undefined): string =>
  limit === undefined ? sizeOf(bytes) : `${sizeOf(bytes)} of ${sizeOf(limit)} (${Math.floor((100 * bytes) / limit)} %)`

function tierLine({ name, bytes, limitBytes, hits, misses, outages, queued, corrupt, isDown, reads }: Tier): string {
  const lookups = hits + misses
  return `  ${mark(!isDown)} tier ${name}: ${[
    // A store that other instances fill too does not report its size.
    ...(bytes === undefined ? [] : [fill(bytes, limitBytes)]),
    lookups > 0 ? `${Math.floor((100 * hits) / lookups)} % of ${lookups} lookups were hits` : 'no lookups yet',
    ...timesOf('reads', reads),
    ...(outages > 0 ? [`${outages} outages`] : []),
    ...(queued > 0 ? [`${queued} blocks wait to be written`] : []),
    ...(corrupt > 0 ? [`${corrupt} corrupt blocks`] : []),
    ...(isDown ? ['skipped: its circuit breaker is open'] : []),
  ].join(', ')}`
}

const routerLine = ({ name, lookups, named, failures, lastFailure, backoffMs }: Router): string =>
  `  ${mark(backoffMs === 0)} router ${name}: ${[
    `${lookups} lookups, ${named} named a gateway`,
    ...(failures > 0 ? [`failed ${failures}`] : []),
    ...(backoffMs > 0 ? [`next attempt in ${agoOf(backoffMs)}: ${lastFailure}`] : []),
  ].join(', ')}`

function announcedLines(
  { peerId, head, roots, advertisements, lastError, indexers }: Announced,
  now: number,
): string[] {
  const what = `${roots} uploads in ${advertisements} advertisements, as ${peerId}`
  const own = `  ${mark(lastError === undefined)} announced: ${what}${lastError === undefined ? '' : `; the last batch: ${lastError}`}`
  return [
    own,
    ...indexers.map(({ name, announcedAt, lagMs, lastError: why }) => {
      const state =
        head === undefined
          ? 'nothing to tell yet'
          : lagMs === 0
            ? 'has all of it'
            : `lacks the newest for ${agoOf(lagMs)}${announcedAt === undefined ? ', not announced yet' : `, announced ${agoOf(now - announcedAt)} ago`}`
      return `  ${mark(why === undefined)} indexer ${name}: ${state}${why === undefined ? '' : `; ${why}`}`
    }),
  ]
}

function upstreamLine(one: Upstream, now: number): string {
  const { name, state, why, until, asked, won, notFound, throttled, failed, hashMismatch, firstByte, lastError } = one
  const isWell = state === 'ready'
  return `  ${mark(isWell)} upstream ${name}: ${[
    `${state}${isWell || why === undefined ? '' : ` (${why})`}`,
    ...(until === undefined ? [] : [`for ${agoOf(until - now)} more`]),
    `asked ${asked}, won ${won}`,
    ...timesOf('first byte', firstByte),
    ...count(notFound, 'not found'),
    ...count(throttled, 'throttled'),
    ...count(failed, 'failed'),
    ...count(hashMismatch, 'hash mismatch'),
    ...(lastError ? [`last error ${agoOf(now - lastError.at)} ago: ${lastError.why}`] : []),
  ].join(', ')}`
}

const providerName = ({ name }: Provider): string => `provider ${name}`

function providerLine(one: Provider): string {
  const failed = Object.entries(one.failed).map(([kind, number]) => `${number} ${kind}`)
  return `  ${mark(one.ok !== false)} ${providerName(one)}: ${[
    ...(one.ok === false && one.why !== undefined ? [one.why] : []),
    `${one.pinned} pinned since the start`,
    `${one.waiting} wait for it`,
    ...timesOf('took', one.took),
    ...(failed.length > 0 ? [`failures: ${failed.join(', ')}`] : []),
  ].join(', ')}`
}

function pendingLines({ open, oldestAt, uploads }: Status['pending'], now: number): string[] {
  const oldest = oldestAt === undefined ? '' : `, the oldest for ${agoOf(now - oldestAt)}`
  const lines = uploads.slice(0, 10).map(({ cid, providers }) => {
    const lacking = Object.entries(providers).filter(([, { state }]) => state !== 'pinned')
    return `    ${cid}  ${lacking.map(([name, { state, why }]) => `${name} ${state}${why ? ` (${why})` : ''}`).join(', ')}`
  })
  const more = open > lines.length ? [`    and ${open - lines.length} more: cidgate pins --state pending`] : []
  return [`  ${open} uploads wait for a provider${oldest}:`, ...lines, ...more]
}

function failureLines(failures: Status['failures']): string[] {
  if (failures.length === 0) return ['no request failed since the start']
  return failures.flatMap(({ at, request, client, method, path, status, isCut, ms, kind, why, attempts = [] }) => [
    `${new Date(at).toISOString()}  ${status}${isCut ? ' (cut)' : ''}  ${method} ${path}  ${Math.round(ms)} ms  request ${request ?? 'unknown'}  client ${client ?? 'unknown'}`,
    ...(why === undefined ? [] : [`  ${kind === undefined ? '' : `${kind}: `}${why}`]),
    ...attempts.map((one) => `  ${one.upstream}: ${one.outcome}, after ${one.ms} ms`),
  ])
}

const timesOf = (what: string, { p50Ms, p95Ms }: Times): string[] =>
  p50Ms === undefined ? [] : [`${what} ${Math.round(p50Ms)} ms, p95 ${Math.round(p95Ms ?? p50Ms)} ms`]

const count = (number: number, what: string): string[] => (number > 0 ? [`${number} ${what}`] : [])

function agoOf(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000))
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`
  return `${Math.round(seconds / 3600)} h`
}
