// W3C Trace Context: a client's `traceparent` is read, and goes on to whatever is asked for its request.
import { AsyncLocalStorage } from 'node:async_hooks'
import { randomBytes } from 'node:crypto'

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

export interface Trace {
  /** What `work` asks, and all that it starts, belongs to this trace. */
  run<Result>(parent: TraceParent, work: () => Result): Result
  /** The `traceparent` for a request of ours. Undefined outside of a trace. */
  header(): string | undefined
}

/**
 * Questions are shared by requests and go on behind them: they belong to the trace of the request that began them. Before Node 24 to
 * follow one request makes every `await` of the process several times slower, which a client must not be able to do.
 */
export function createTrace(nodeMajor = Number(process.versions.node.split('.')[0])): Trace {
  if (nodeMajor < 24) return { run: (_parent, work) => work(), header: () => undefined }
  const storage = new AsyncLocalStorage<string>()
  return {
    run: ({ traceId, flags }, work) => storage.run(`00-${traceId}-${randomBytes(8).toString('hex')}-${flags}`, work),
    header: () => storage.getStore(),
  }
}

type Dispatched = { readonly headers?: unknown }
type Dispatch<Options extends Dispatched, Handler> = (options: Options, handler: Handler) => boolean

/** For `compose` of undici: adds the header to each request that is made within a trace. */
export const withTrace =
  (trace: Trace | undefined) =>
  <Options extends Dispatched, Handler>(dispatch: Dispatch<Options, Handler>): Dispatch<Options, Handler> =>
  (options, handler) => {
    const traceparent = trace?.header()
    if (traceparent === undefined) return dispatch(options, handler)
    return dispatch({ ...options, headers: { ...(options.headers as object | undefined), traceparent } }, handler)
  }
