// Encodes spans as OTLP JSON.
import type { FinishedSpan, SpanFacts } from '../../core/wire/trace.ts'

export type SpanSource = {
  readonly version: string
  /** Attributes of this service. */
  readonly resource: SpanFacts
}

const kinds = { server: 2, client: 3 } as const
const failed = 2

export function otlpOf(spans: readonly FinishedSpan[], { version, resource }: SpanSource): string {
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
