// W3C Trace Context: a client's `traceparent` is read, and goes on to whatever is asked for its request. Where spans are
// recorded, each request and each question of ours has a point of its own in the trace.
import { AsyncLocalStorage } from 'node:async_hooks'
import { randomFillSync } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { type Clock, systemClock } from '../clock.ts'

export type TraceParent = { readonly traceId: string; readonly parentId: string; readonly flags: string }

const form = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/
const nothing = /^0+$/

/** Undefined for what is not well formed: then there is no trace, as the specification has it. */
export function readTraceParent(header: string | string[] | undefined): TraceParent | undefined {
  if (typeof header !== 'string') return undefined
  const [, version, traceId = '', parentId = '', flags = '', rest] = form.exec(header) ?? []
  if (version === undefined || version === 'ff' || (version === '00' && rest !== undefined)) return undefined
  return nothing.test(traceId) || nothing.test(parentId) ? undefined : { traceId, parentId, flags }
}

const longestState = 512
const stateForm = /^[\x20-\x7e\t]+$/

/** Node joins several of them. One that is longer than systems have to take, or no text, counts as none. */
export function readTraceState(header: string | string[] | undefined): string | undefined {
  const text = String(header ?? '').trim()
  return text.length <= longestState && stateForm.test(text) ? text : undefined
}

/** A request, or a question of ours, in its trace. */
export type TracePoint = {
  readonly traceId: string
  readonly spanId: string
  /** Undefined: the trace begins here. */
  readonly parentId: string | undefined
  readonly flags: string
  /** What the client's own systems say of the trace: for the collector alone, and for no service that is asked. */
  readonly traceState: string | undefined
  readonly isRecorded: boolean
  /** Questions below it, and those that were not recorded because there were too many. */
  questions: number
  leftOut: number
  /** The status of the last answer that it got. */
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

/** Takes spans that are over. It must not throw, and callers do not wait for it. */
export interface SpanRecorder {
  /** `parentFlags`: of the `traceparent` that the client sent; undefined: it sent none. */
  isSampled(traceId: string, parentFlags: string | undefined): boolean
  take(span: FinishedSpan): void
}

/** A question to another service that is recorded. */
export interface OpenSpan {
  /** What `work` sends names this question as its parent. */
  run<Result>(work: () => Result): Result
  /** The first call counts. */
  end(facts: SpanFacts, isError: boolean): void
}

/** What a trace reads of a request. The point is kept with the request itself. */
type TracedRequest = { readonly headers: IncomingHttpHeaders; [pointKey]?: TracePoint }

export interface Trace {
  /** The point of a request, the same one each time. Undefined: it is in no trace. */
  of(request: TracedRequest): TracePoint | undefined
  /** What a client or an operator may be told: the trace that the client began, or one that is recorded. */
  idOf(request: TracedRequest): string | undefined
  /** What `work` asks, and all that it starts, belongs to this point. */
  run<Result>(point: TracePoint, work: () => Result): Result
  /** Where the running code belongs. */
  here(): TracePoint | undefined
  /** The `traceparent` for a request of ours. Undefined outside of a trace. */
  header(): string | undefined
  /** Begins a question to another service, below `parent`, or below none. Undefined: it is not recorded. */
  ask(name: string, parent?: TracePoint): OpenSpan | undefined
  /** Records what became of a request that began then (`Clock.monotonic`). */
  answered(point: TracePoint, span: { name: string; began: number; facts: SpanFacts; isError: boolean }): void
}

export type TraceOptions = {
  /** Without it nothing is recorded, and only a trace that a client began goes on. */
  readonly recorder?: SpanRecorder | undefined
  readonly clock?: Clock
  readonly nodeMajor?: number
}

const pointKey = Symbol('trace point')
// A file that comes block by block may ask thousands of questions: they must not push the spans of all others out.
const mostQuestions = 128
// The system's time was set anew; below that, it is the same time told in whole milliseconds.
const jumpMs = 100

/**
 * Questions are shared by requests and go on behind them: they belong to the trace of the request that began them. Before Node 24 to
 * follow one request makes every `await` of the process several times slower, which a client must not be able to do; an
 * operator who wants spans may.
 */
export function createTrace(options: TraceOptions = {}): Trace {
  const { recorder, clock = systemClock, nodeMajor = Number(process.versions.node.split('.')[0]) } = options
  const storage = recorder || nodeMajor >= 24 ? new AsyncLocalStorage<TracePoint>() : undefined
  const randomId = createRandomIds()
  let epoch = clock.now() - clock.monotonic()

  /** One way from the one clock to the other, so that no question seems to begin before its request. */
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
    if (parent.isRecorded && ++parent.questions > mostQuestions) {
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
          const told = { ...facts, 'http.response.status_code': point.status }
          recorder.take({ point, kind: 'client', name, beganAt, ms, facts: told, isError })
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

/** Random bytes in hexadecimal digits. To ask for each few of them alone would cost a hot answer a tenth. */
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

/** Whether the trace is recorded goes on to those who are asked. */
function flagsWith(flags: string, isRecorded: boolean): string {
  const others = Number.parseInt(flags, 16) & ~sampledFlag
  return (others | (isRecorded ? sampledFlag : 0)).toString(16).padStart(2, '0')
}

export const isSampledBy = (flags: string): boolean => (Number.parseInt(flags, 16) & sampledFlag) !== 0

type Dispatched = { readonly headers?: unknown }
type Dispatch<Options extends Dispatched, Handler> = (options: Options, handler: Handler) => boolean

/** For `compose` of undici: adds the header to each request that is made within a trace, and notes the status of its answer. */
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

/** The handler itself in everything else: undici's have private fields, and no base class that is to stay. */
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
