// The standard OTEL_ variables that configure the export of spans. An empty one counts as not set,
// as the specification requires.
import { createSampler, type IsSampled, samplers } from './exporter.ts'

export type TraceEnvironment = Readonly<Record<string, string | undefined>>

export type TraceSettings = {
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

function decoded(value: string): string | undefined {
  try {
    return decodeURIComponent(value)
  } catch {
    return undefined
  }
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
  const known = samplers.find((one) => one === name)
  if (!known) faults.push(`OTEL_TRACES_SAMPLER: the samplers are ${samplers.join(', ')}; parentbased_always_on holds`)
  return createSampler(known ?? 'parentbased_always_on', isRatio ? ratio : 1)
}
