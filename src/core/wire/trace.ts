// W3C Trace Context: reads a client's `traceparent` and forwards it with every request made on its
// behalf. If spans are recorded, each request and each outgoing request has its own span.
import { AsyncLocalStorage } from 'node:async_hooks'
import { randomFillSync } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { type Clock, systemClock } from '../clock.ts'

type TraceParent = { readonly traceId: string; readonly parentId: string; readonly flags: string }

const form = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/
const nothing = /^0+$/

/** Undefined for a malformed header: the specification says to ignore it. */
function readTraceParent(header: string | string[] | undefined): TraceParent | undefined {
  if (typeof header !== 'string') return undefined
  const [, version, traceId = '', parentId = '', flags = '', rest] = form.exec(header) ?? []
  if (version === undefined || version === 'ff' || (version === '00' && rest !== undefined)) return undefined
  return nothing.test(traceId) || nothing.test(parentId) ? undefined : { traceId, parentId, flags }
}

const longestState = 512
const stateForm = /^[\x20-\x7e\t]+$/

/** Node joins repeated headers. A value that is too long or not text counts as absent. */
function readTraceState(header: string | string[] | undefined): string | undefined {
  const text = String(header ?? '').trim()
  return text.length <= longestState && stateForm.test(text) ? text : undefined
}

/** The position of a request, ours or a client's, in its trace. */
export type TracePoint = {
  readonly traceId: string
  readonly spanId: string
  /** Undefined: the trace begins here. */
  readonly parentId: string | undefined
  readonly flags: string
  /**
   * Opaque state of the client's own systems: exported to the collector only, never forwarded to
   * other services.
   */
  readonly traceState: string | undefined
  readonly isRecorded: boolean
  /** Outgoing requests of this request, and those not recorded because of the limit. */
  questions: number
  leftOut: number
  /** The status of the last response that it received. */
  status: number | undefined
}

export type SpanFacts = Readonly<Record<string, string | number | boolean | undefined>>

export type FinishedSpan = {
  readonly point: TracePoint
  readonly kind: 'server' | 'client'
  readonly name: string
  /** Milliseconds since the epoch, with fractions. */
  readonly beganAt: number
  readonly ms: number
  readonly facts: SpanFacts
  readonly isError: boolean
}

/** Receives finished spans. Never throws, and callers do not wait for it. */
export interface SpanRecorder {
  /** `parentFlags`: those of the client's `traceparent`; undefined if it sent none. */
  isSampled(traceId: string, parentFlags: string | undefined): boolean
  take(span: FinishedSpan): void
}

/** A recorded outgoing request. */
export interface OpenSpan {
  /** Requests sent by `work` name this span as their parent. */
  run<Result>(work: () => Result): Result
  /** Only the first call counts. */
  end(facts: SpanFacts, isError: boolean): void
}

/** The part of a request that tracing reads. The point is cached on the request itself. */
type TracedRequest = { readonly headers: IncomingHttpHeaders; [pointKey]?: TracePoint }

export interface Trace {
  /** The point of a request, the same on each call; undefined if it has no trace. */
  of(request: TracedRequest): TracePoint | undefined
  /**
   * The trace ID to show to a client or an operator: one that the client began, or one that is
   * recorded.
   */
  idOf(request: TracedRequest): string | undefined
  /** Runs `work`, and everything that it starts, within this point. */
  run<Result>(point: TracePoint, work: () => Result): Result
  /** The point of the running code. */
  here(): TracePoint | undefined
  /** The `traceparent` of an outgoing request; undefined outside of a trace. */
  header(): string | undefined
  /**
   * Begins a span for an outgoing request, a child of `parent` if given. Undefined if it is not
   * recorded.
   */
  ask(name: string, parent?: TracePoint): OpenSpan | undefined
  /** Records a finished request that began at `began` (`Clock.monotonic`). */
  answered(point: TracePoint, span: { name: string; began: number; facts: SpanFacts; isError: boolean }): void
}

type TraceOptions = {
  /** Without a recorder no spans are recorded; a client's trace is still forwarded. */
  readonly recorder?: SpanRecorder | undefined
  readonly clock?: Clock
  readonly nodeMajor?: number
}

const pointKey = Symbol('trace point')
// A file fetched block by block may make thousands of requests, which must not displace the spans
// of all others.
const maxQuestions = 128
// A larger difference means that the system clock was set; a smaller one is rounding to
// milliseconds.
const jumpMs = 100

/**
 * Outgoing requests are shared and may outlive the request that began them; they belong to its
 * trace. Before Node 24, following one request makes every `await` of the process several times
 * slower, so clients must not be able to enable it; operators who want spans may.
 */
export function createTrace(options: TraceOptions = {}): Trace {
  const { recorder, clock = systemClock, nodeMajor = Number(process.versions.node.split('.')[0]) } = options
  const storage = recorder || nodeMajor >= 24 ? new AsyncLocalStorage<TracePoint>() : undefined
  const randomId = createRandomIds()
  let epoch = clock.now() - clock.monotonic()

  /**
   * One conversion between the clocks, so that no outgoing request seems to begin before its
   * parent.
   */
  function sinceEpoch(at: number): number {
    const now = clock.now() - clock.monotonic()
    if (Math.abs(now - epoch) > jumpMs) epoch = now
    return epoch + at
  }

  type Place = Pick<TracePoint, 'traceId' | 'parentId' | 'flags' | 'traceState' | 'isRecorded'>
  const pointOf = ({ traceId, parentId, flags, traceState, isRecorded }: Place): TracePoint => ({
    traceId,
    spanId: randomId(8),
    parentId,
    flags,
    traceState,
    isRecorded,
    questions: 0,
    leftOut: 0,
    status: undefined,
  })

  function pointBelow(parent: TraceParent | undefined, traceState?: string): TracePoint {
    const traceId = parent?.traceId ?? randomId(16)
    const isRecorded = recorder?.isSampled(traceId, parent?.flags) ?? false
    const own = isRecorded ? '01' : '00'
    const flags = parent && (recorder ? flagsWith(parent.flags, isRecorded) : parent.flags)
    return pointOf({ traceId, parentId: parent?.parentId, flags: flags ?? own, traceState, isRecorded })
  }

  function openBelow(parent: TracePoint | undefined): TracePoint | undefined {
    if (!parent) return pointBelow(undefined)
    if (parent.isRecorded && ++parent.questions > maxQuestions) {
      parent.leftOut++
      return undefined
    }
    return pointOf({ ...parent, parentId: parent.spanId })
  }

  function of(request: TracedRequest): TracePoint | undefined {
    const known = request[pointKey]
    if (known) return known
    const { traceparent, tracestate } = request.headers
    const parent = traceparent === undefined ? undefined : readTraceParent(traceparent)
    if (!parent && !recorder) return undefined
    const point = pointBelow(parent, parent && recorder && readTraceState(tracestate))
    request[pointKey] = point
    return point
  }

  const run = <Result>(point: TracePoint, work: () => Result): Result => (storage ? storage.run(point, work) : work())

  return {
    of,
    idOf(request) {
      const point = of(request)
      return point && (point.parentId !== undefined || point.isRecorded) ? point.traceId : undefined
    },
    run,
    here: () => storage?.getStore(),
    header() {
      const point = storage?.getStore()
      return point && `00-${point.traceId}-${point.spanId}-${point.flags}`
    },
    ask(name, parent = storage?.getStore()) {
      if (!recorder || parent?.isRecorded === false) return undefined
      const point = openBelow(parent)
      if (!point?.isRecorded) return undefined
      const began = clock.monotonic()
      let isOver = false
      return {
        run: (work) => run(point, work),
        end(facts, isError) {
          if (isOver) return
          isOver = true
          const beganAt = sinceEpoch(began)
          const ms = clock.monotonic() - began
          const allFacts = { ...facts, 'http.response.status_code': point.status }
          recorder.take({ point, kind: 'client', name, beganAt, ms, facts: allFacts, isError })
        },
      }
    },
    answered(point, { name, began, facts, isError }) {
      if (!recorder || !point.isRecorded) return
      const beganAt = sinceEpoch(began)
      recorder.take({ point, kind: 'server', name, beganAt, ms: clock.monotonic() - began, facts, isError })
    },
  }
}

/**
 * Random bytes in hexadecimal, from a pool: a call for each few bytes would slow a cached response
 * by a tenth.
 */
function createRandomIds(): (bytes: number) => string {
  const pool = Buffer.alloc(4096)
  let used = pool.length
  return (bytes) => {
    if (used + bytes > pool.length) {
      randomFillSync(pool)
      used = 0
    }
    used += bytes
    return pool.toString('hex', used - bytes, used)
  }
}

const sampledFlag = 1

/** Forwards the sampling decision in the flags. */
function flagsWith(flags: string, isRecorded: boolean): string {
  const others = Number.parseInt(flags, 16) & ~sampledFlag
  return (others | (isRecorded ? sampledFlag : 0)).toString(16).padStart(2, '0')
}

export const isSampledBy = (flags: string): boolean => (Number.parseInt(flags, 16) & sampledFlag) !== 0

type Dispatched = { readonly headers?: unknown }
type Dispatch<Options extends Dispatched, Handler> = (options: Options, handler: Handler) => boolean

/**
 * An undici interceptor (for `compose`): adds the header to each request made within a trace, and
 * notes the status of the response.
 */
export const withTrace =
  (trace: Trace | undefined) =>
  <Options extends Dispatched, Handler extends object>(
    dispatch: Dispatch<Options, Handler>,
  ): Dispatch<Options, Handler> =>
  (options, handler) => {
    const traceparent = trace?.header()
    if (traceparent === undefined) return dispatch(options, handler)
    const point = trace?.here()
    const noting = point?.isRecorded ? notingStatus(handler, point) : handler
    return dispatch({ ...options, headers: { ...(options.headers as object | undefined), traceparent } }, noting)
  }

/** A proxy, because undici's handlers have private fields and no stable base class. */
const notingStatus = <Handler extends object>(handler: Handler, point: TracePoint): Handler =>
  new Proxy(handler, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name)
      if (typeof value !== 'function') return value
      if (name !== 'onResponseStart') return value.bind(target)
      return (controller: unknown, status: number, ...rest: unknown[]) => {
        point.status = status
        return Reflect.apply(value, target, [controller, status, ...rest])
      }
    },
  })
