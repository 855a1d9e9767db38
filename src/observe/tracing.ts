// Sends spans to an OpenTelemetry collector by OTLP/HTTP, as the standard OTEL_ variables say; an
// empty one counts as not set, as the specification requires. Buffers a bounded number for a slow or
// unavailable collector, counts losses, and never delays a request.
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import { Agent, request } from 'undici'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { decoded, parseRetryAfter } from '../core/wire/http.ts'
import { type FinishedSpan, isSampledBy, type SpanFacts, type SpanRecorder } from '../core/wire/trace.ts'

/** Spans accepted by the collector, dropped from the full queue, and refused by the collector. */
export type SpanCounts = { sent: number; dropped: number; failed: number }

export interface SpanExporter extends SpanRecorder {
  readonly counts: Readonly<SpanCounts>
  /** Flushes the queue, for a short time. */
  close(): Promise<void>
}

type SpanExporterOptions = {
  readonly settings: TraceSettings
  readonly version: string
  readonly clock: Clock
  readonly log: Log
}

const compress = promisify(gzip)

const maxTries = 5
const firstPauseMs = 1_000
const longestPauseMs = 30_000
const closeMs = 5_000
const logIntervalMs = 60_000
const maxAnswerBytes = 64 * 1024
/** The statuses after which the OTLP specification requires a retry. */
const passing: ReadonlySet<number> = new Set([429, 502, 503, 504])

type Outcome =
  | { readonly how: 'taken'; readonly rejected: number; readonly why: string }
  | { readonly how: 'refused'; readonly why: string }
  | { readonly how: 'later'; readonly why: string; readonly afterMs: number }

export function createSpanExporter({ settings, version, clock, log }: SpanExporterOptions): SpanExporter {
  const { isSampled, resource, timeoutMs, url, intervalMs, maxWaiting, maxInBatch } = settings
  const agent = new Agent({ connections: 1, pipelining: 1, allowH2: false, maxResponseSize: maxAnswerBytes })
  const headers = {
    ...settings.headers,
    'content-type': 'application/json',
    'user-agent': `cidgate/${version}`,
    ...(settings.isCompressed && { 'content-encoding': 'gzip' }),
  }
  const counts: SpanCounts = { sent: 0, dropped: 0, failed: 0 }
  const stopping = new AbortController()
  const hurrying = new AbortController()
  let waiting: FinishedSpan[] = []
  let sending: Promise<void> | undefined
  let stopTimer: (() => void) | undefined
  let isClosing = false
  let loggedAt = Number.NEGATIVE_INFINITY

  function logLost(spans: number, why: string): void {
    if (clock.monotonic() - loggedAt < logIntervalMs) return
    loggedAt = clock.monotonic()
    log('warn', 'spans.lost', { spans, why })
  }

  async function post(body: string | Buffer): Promise<Outcome> {
    const { signal } = stopping
    const late = () => new Failure('timeout', `no answer within ${timeoutMs} ms`, { source: 'ours' })
    return withDeadline({ ms: timeoutMs, clock, signal, late }, async (own) => {
      const answer = await request(url, { method: 'POST', headers, body, dispatcher: agent, signal: own })
      const said = await answer.body.text().catch(() => '')
      const { statusCode: status } = answer
      if (status >= 200 && status < 300) return { how: 'taken', ...rejectedIn(said) }
      const why = `the collector answered ${status}`
      if (!passing.has(status)) return { how: 'refused', why }
      const wait = answer.headers['retry-after']
      const afterMs = parseRetryAfter(typeof wait === 'string' ? wait : undefined, clock.now()) ?? 0
      return { how: 'later', why, afterMs }
    })
  }

  const tried = (body: string | Buffer): Promise<Outcome> =>
    post(body).catch((error: unknown) => ({ how: 'later', why: reasonOf(error), afterMs: 0 }))

  async function send(batch: readonly FinishedSpan[]): Promise<void> {
    const json = otlpOf(batch, { version, resource })
    const body = settings.isCompressed ? await compress(json) : json
    for (let tries = 1; ; tries++) {
      const outcome = await tried(body)
      if (outcome.how === 'taken') {
        const rejected = Math.min(outcome.rejected, batch.length)
        counts.sent += batch.length - rejected
        counts.failed += rejected
        if (rejected > 0) logLost(rejected, outcome.why)
        return
      }
      const isLast = outcome.how === 'refused' || tries >= maxTries || isClosing
      if (isLast) {
        counts.failed += batch.length
        return logLost(batch.length, outcome.why)
      }
      logLost(waiting.length + batch.length, `${outcome.why}; they wait, and are sent again`)
      const pauseMs = Math.max(firstPauseMs * 2 ** (tries - 1), outcome.afterMs)
      await clock.sleep(Math.min(longestPauseMs, pauseMs), hurrying.signal).catch(() => {})
    }
  }

  async function sendAll(): Promise<void> {
    while (waiting.length > 0 && !stopping.signal.aborted) await send(waiting.splice(0, maxInBatch))
  }

  function flush(): Promise<void> {
    stopTimer?.()
    stopTimer = undefined
    sending ??= sendAll().finally(() => {
      sending = undefined
      if (waiting.length > 0 && !isClosing) sendSoon()
    })
    return sending
  }

  function sendSoon(): void {
    if (waiting.length >= maxInBatch) void flush()
    else stopTimer ??= clock.after(intervalMs, () => void flush())
  }

  return {
    counts,
    isSampled,
    take(span) {
      if (isClosing || waiting.length >= maxWaiting) {
        counts.dropped++
        if (!isClosing) logLost(1, `${maxWaiting} spans wait for the collector already`)
        return
      }
      waiting.push(span)
      if (!sending) sendSoon()
    },
    async close() {
      isClosing = true
      hurrying.abort()
      const stop = clock.after(closeMs, () => stopping.abort())
      await flush()
      stop()
      counts.dropped += waiting.length
      waiting = []
      await agent.destroy()
    },
  }
}

/** A collector may accept part of a batch (`partialSuccess`). */
function rejectedIn(text: string): { readonly rejected: number; readonly why: string } {
  try {
    const { partialSuccess = {} } = JSON.parse(text) as { partialSuccess?: { rejectedSpans?: unknown } }
    const rejected = Number(partialSuccess.rejectedSpans ?? 0)
    return { rejected: rejected > 0 ? Math.floor(rejected) : 0, why: 'the collector took a part of them' }
  } catch {
    return { rejected: 0, why: '' }
  }
}

function reasonOf(error: unknown): string {
  const { code, message } = error as { readonly code?: unknown; readonly message?: unknown }
  return `the collector cannot be asked (${String(code ?? message ?? 'no reason given')})`
}

type SpanSource = {
  readonly version: string
  /** Attributes of this service. */
  readonly resource: SpanFacts
}

const kinds = { server: 2, client: 3 } as const
const failed = 2

function otlpOf(spans: readonly FinishedSpan[], { version, resource }: SpanSource): string {
  const scope = { name: 'cidgate', version }
  const all = [{ scope, spans: spans.map(spanOf) }]
  return JSON.stringify({ resourceSpans: [{ resource: { attributes: attributesOf(resource) }, scopeSpans: all }] })
}

const spanOf = ({ point, kind, name, beganAt, ms, facts, isError }: FinishedSpan) => ({
  traceId: point.traceId,
  spanId: point.spanId,
  ...(point.traceState !== undefined && { traceState: point.traceState }),
  ...(point.parentId !== undefined && { parentSpanId: point.parentId }),
  flags: Number.parseInt(point.flags, 16),
  name,
  kind: kinds[kind],
  startTimeUnixNano: nanos(beganAt),
  endTimeUnixNano: nanos(beganAt + ms),
  attributes: attributesOf(facts),
  ...(isError && { status: { code: failed } }),
})

/** In whole microseconds, because nanoseconds exceed the exact integers of JavaScript. */
const nanos = (ms: number): string => `${Math.round(ms * 1000)}000`

const attributesOf = (facts: SpanFacts) =>
  Object.entries(facts).flatMap(([key, value]) => (value === undefined ? [] : [{ key, value: anyValue(value) }]))

function anyValue(value: string | number | boolean) {
  if (typeof value === 'string') return { stringValue: value }
  if (typeof value === 'boolean') return { boolValue: value }
  return Number.isInteger(value) ? { intValue: String(value) } : { doubleValue: value }
}

export type TraceEnvironment = Readonly<Record<string, string | undefined>>

type TraceSettings = {
  /** The URL of the collector for spans. */
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  /** True for gzip. */
  readonly isCompressed: boolean
  /** The response timeout. */
  readonly timeoutMs: number
  /** The batch interval, the queue limit, and the batch size. */
  readonly intervalMs: number
  readonly maxWaiting: number
  readonly maxInBatch: number
  /** Attributes of this service, on each span. */
  readonly resource: Readonly<Record<string, string>>
  readonly isSampled: IsSampled
}

type ReadSettings = {
  /** Undefined if spans are off. */
  readonly settings: TraceSettings | undefined
  /** Settings that are not supported or invalid. */
  readonly faults: readonly string[]
}

/**
 * The specification's defaults, except for smaller batches: encoding one blocks the event loop for
 * one or two milliseconds.
 */
const defaults = { timeoutMs: 10_000, intervalMs: 5_000, maxWaiting: 2048, maxInBatch: 256 } as const

export function readTraceSettings(environment: TraceEnvironment): ReadSettings {
  const faults: string[] = []
  const said = (name: string): string | undefined => environment[name]?.trim() || undefined
  const ofTraces = (name: string) => said(`OTEL_EXPORTER_OTLP_TRACES_${name}`) ?? said(`OTEL_EXPORTER_OTLP_${name}`)
  const off = { settings: undefined, faults }

  const exporter = said('OTEL_TRACES_EXPORTER')
  if (said('OTEL_SDK_DISABLED')?.toLowerCase() === 'true' || exporter === 'none') return off
  const own = said('OTEL_EXPORTER_OTLP_TRACES_ENDPOINT')
  const shared = said('OTEL_EXPORTER_OTLP_ENDPOINT')
  const endpoint = own ?? shared
  if (endpoint === undefined) return off
  const url = urlOf(endpoint, own === undefined)
  if (typeof url === 'string') return { settings: undefined, faults: [url] }
  if (exporter !== undefined && exporter !== 'otlp')
    return { settings: undefined, faults: ['OTEL_TRACES_EXPORTER: only otlp and none are known; no span is sent'] }
  if (ofTraces('PROTOCOL') === 'grpc') {
    const why = 'OTEL_EXPORTER_OTLP_PROTOCOL: spans are sent by HTTP and not by gRPC; no span is sent'
    return { settings: undefined, faults: [`${why}: say http/json, and the port of the collector for HTTP (4318)`] }
  }

  const number = (name: string, text: string | undefined, otherwise: number) =>
    wholeNumber(name, text, otherwise, faults)
  return {
    settings: {
      url: url.href,
      headers: readPairs(ofTraces('HEADERS'), 'OTEL_EXPORTER_OTLP_HEADERS', faults),
      isCompressed: compressionOf(ofTraces('COMPRESSION'), faults),
      timeoutMs: number('OTEL_EXPORTER_OTLP_TIMEOUT', ofTraces('TIMEOUT'), defaults.timeoutMs),
      intervalMs: number('OTEL_BSP_SCHEDULE_DELAY', said('OTEL_BSP_SCHEDULE_DELAY'), defaults.intervalMs),
      maxWaiting: number('OTEL_BSP_MAX_QUEUE_SIZE', said('OTEL_BSP_MAX_QUEUE_SIZE'), defaults.maxWaiting),
      maxInBatch: number('OTEL_BSP_MAX_EXPORT_BATCH_SIZE', said('OTEL_BSP_MAX_EXPORT_BATCH_SIZE'), defaults.maxInBatch),
      resource: resourceOf(said, faults),
      isSampled: samplerOf(said('OTEL_TRACES_SAMPLER'), said('OTEL_TRACES_SAMPLER_ARG'), faults),
    },
    faults,
  }
}

/** The URL, or its error; the value is not repeated, since it may contain secrets by mistake. */
function urlOf(endpoint: string, isForAllSignals: boolean): URL | string {
  const name = isForAllSignals ? 'OTEL_EXPORTER_OTLP_ENDPOINT' : 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'
  const url = URL.canParse(endpoint) ? new URL(endpoint) : undefined
  if (url?.protocol !== 'http:' && url?.protocol !== 'https:')
    return `${name}: that is no address of a collector, as http://127.0.0.1:4318 is; no span is sent`
  if (url.username !== '' || url.password !== '')
    return `${name}: a user and a password belong into OTEL_EXPORTER_OTLP_HEADERS; no span is sent`
  if (isForAllSignals) url.pathname = `${url.pathname.replace(/\/+$/, '')}/v1/traces`
  return url
}

/** Parses `key=value,key=value` with URL-encoded values. */
function readPairs(text: string | undefined, name: string, faults: string[]): Record<string, string> {
  const pairs: Record<string, string> = {}
  for (const part of text?.split(',') ?? []) {
    const at = part.indexOf('=')
    const key = part.slice(0, Math.max(0, at)).trim()
    const value = decoded(part.slice(at + 1).trim())
    if (key !== '' && value !== undefined) pairs[key] = value
    else if (part.trim() !== '') faults.push(`${name}: a part that is not key=value is ignored`)
  }
  return pairs
}

function compressionOf(name: string | undefined, faults: string[]): boolean {
  if (name !== undefined && name !== 'gzip' && name !== 'none')
    faults.push('OTEL_EXPORTER_OTLP_COMPRESSION: gzip and none are known; spans go uncompressed')
  return name === 'gzip'
}

function wholeNumber(name: string, text: string | undefined, otherwise: number, faults: string[]): number {
  const number = Number(text ?? otherwise)
  if (Number.isInteger(number) && number > 0) return number
  faults.push(`${name}: not a whole number above 0; ${otherwise} is used`)
  return otherwise
}

function resourceOf(said: (name: string) => string | undefined, faults: string[]): Record<string, string> {
  const pairs = readPairs(said('OTEL_RESOURCE_ATTRIBUTES'), 'OTEL_RESOURCE_ATTRIBUTES', faults)
  return { 'service.name': 'cidgate', ...pairs, ...named(said('OTEL_SERVICE_NAME')) }
}

const named = (name: string | undefined) => (name === undefined ? {} : { 'service.name': name })

function samplerOf(name = 'parentbased_always_on', argument: string | undefined, faults: string[]): IsSampled {
  const ratio = Number(argument ?? 1)
  const isRatio = ratio >= 0 && ratio <= 1
  if (!isRatio) faults.push('OTEL_TRACES_SAMPLER_ARG: that is no number from 0 to 1; 1 holds')
  const isKnown = samplers.includes(name)
  if (!isKnown) faults.push(`OTEL_TRACES_SAMPLER: the samplers are ${samplers.join(', ')}; parentbased_always_on holds`)
  return createSampler(isKnown ? name : 'parentbased_always_on', isRatio ? ratio : 1)
}

type IsSampled = (traceId: string, parentFlags: string | undefined) => boolean

/**
 * The last 52 bits of a trace id are its random number: more would not fit into a JavaScript
 * number.
 */
const digits = 13
const range = 2 ** 52

const roots: Readonly<Record<string, (ratio: number) => (traceId: string) => boolean>> = {
  always_on: () => () => true,
  always_off: () => () => false,
  traceidratio: (ratio) => (traceId) => Number.parseInt(traceId.slice(-digits), 16) >= (1 - ratio) * range,
}
const samplers: readonly string[] = [...Object.keys(roots), ...Object.keys(roots).map((name) => `parentbased_${name}`)]

function createSampler(name: string, ratio: number): IsSampled {
  const isChosen = (roots[name.replace('parentbased_', '')] as (typeof roots)[string])(ratio)
  if (!name.startsWith('parentbased_')) return isChosen
  return (traceId, parentFlags) => (parentFlags === undefined ? isChosen(traceId) : isSampledBy(parentFlags))
}
