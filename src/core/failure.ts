// Failures: the kind, whose fault it was, and when to retry. Never an HTTP status:
// http/wire/problem.ts has the one table that maps a Failure to one. Imports nothing from `src`.

export const failureKinds = [
  'not-found', // not at the upstreams that were asked (a 404, or a block that none has)
  'path-not-found', // proved absent: the directory is available and has no such name
  'throttled', // 429, or 503 with Retry-After: rate-limited, but healthy
  'refused', // 401, 403, 410, 451, a challenge page: a retry does not help
  'timeout', // a deadline passed
  'upload-too-slow', // the client sends below the minimum rate
  'upstream-error', // connection cut or refused, 5xx, wrong type, wrong content
  'hash-mismatch', // bytes that do not hash to their CID
  'unavailable', // no upstream could be asked: all are rate-limited or unhealthy, or none is configured
  'too-large', // over a limit of the gateway
  'denied', // on a denylist of the operator
  'malformed', // the request, or verified content, is malformed
  'unsupported', // valid, but not supported
  'overloaded', // the gateway is overloaded
  'disk-full', // the gateway's disk is full
  'disk-error', // the gateway's disk fails
  'cancelled', // the client left
  'internal', // a bug of the gateway
] as const

export type FailureKind = (typeof failureKinds)[number]
export type FailureSource = 'client' | 'upstream' | 'tier' | 'provider' | 'content' | 'ours'

/** Details of a Failure that some handler reads. Add a field only with its reader. */
export type Facts = {
  /** Every upstream answered that it does not have it: absence is as certain as it can be. */
  readonly sure: boolean
  /** The upstream answered later requests first, so it is probably still searching for this one. */
  readonly isSearching: boolean
  /**
   * An upstream that may have it was unavailable and may be back at any moment: do not cache the
   * absence.
   */
  readonly unasked: boolean
  /** No upstream is configured: the tiers alone decide. */
  readonly alone: boolean
  /** The request asked for cached content only. */
  readonly onlyIfCached: boolean
  /** An upstream does not support this format. */
  readonly refuses: 'format'
  readonly isIll: boolean
  /** A proxy in front of the upstream could not reach it. */
  readonly unreachable: boolean
  /** The denylist gives a legal reason. */
  readonly legal: boolean
  /** Errors in a document, each with its position. */
  readonly errors: readonly object[]
  /** The rest of a path that ends at a value inside a document. */
  readonly remainder: string
  /** Decides how a provider is retried. */
  readonly class: 'auth' | 'quota' | 'transient' | 'content'
  /** The outcome at each provider. */
  readonly outcomes: readonly Outcome[]
  /** The host that the upload was forwarded to (thin mode). */
  readonly service: string
  /** The remaining upload quota of a token for today. */
  readonly quota: QuotaRest
}

type Rest = { readonly limit: number; readonly remaining: number }
type QuotaRest = { readonly token: string; readonly uploads?: Rest; readonly bytes?: Rest }

export type Outcome = {
  readonly provider: string
  readonly outcome: string
  readonly detail?: string
  readonly ms?: number
}

/** Details that any kind of Failure may have, since providers report all kinds. */
type OfProviders = 'class' | 'outcomes' | 'service'

type FactNames = {
  readonly 'not-found': 'sure' | 'unasked' | 'alone' | 'onlyIfCached'
  readonly timeout: 'sure' | 'unasked' | 'isSearching'
  readonly unavailable: 'sure' | 'alone'
  readonly overloaded: 'sure'
  readonly throttled: 'quota'
  readonly 'upstream-error': 'refuses' | 'isIll' | 'unreachable'
  readonly refused: 'refuses'
  readonly denied: 'legal'
  readonly malformed: 'errors'
  readonly unsupported: 'remainder'
}

/** The details that a Failure of this kind may have. */
type FactsOf<Kind extends FailureKind> = Partial<
  Pick<Facts, OfProviders | (Kind extends keyof FactNames ? FactNames[Kind] : never)>
>

export type FailureOptions<Kind extends FailureKind = FailureKind> = {
  readonly source: FailureSource
  /** The delay after which a retry may succeed. */
  readonly retryAfterMs?: number | undefined
  readonly cause?: unknown
  readonly facts?: FactsOf<Kind> | undefined
}

/**
 * V8's extension of `Error`: the scripts of the dashboard are checked against this file without
 * Node's types.
 */
const engine = Error as ErrorConstructor & { stackTraceLimit: number }

export class Failure<Kind extends FailureKind = FailureKind> extends Error {
  readonly kind: Kind
  readonly source: FailureSource
  readonly retryAfterMs: number | undefined
  readonly facts: Partial<Facts>

  /** `message`: what happened, to what, and the next step. Never a secret. */
  constructor(kind: Kind, message: string, options: FailureOptions<Kind>) {
    // The stack of an expected failure is useless, and capturing it is most of the cost of creating
    // one.
    const { stackTraceLimit } = engine
    if (kind !== 'internal') engine.stackTraceLimit = 0
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    engine.stackTraceLimit = stackTraceLimit
    this.name = 'Failure'
    this.kind = kind
    this.source = options.source
    this.retryAfterMs = options.retryAfterMs
    this.facts = options.facts ?? {}
  }
}

export const isFailure = <Kind extends FailureKind = FailureKind>(
  error: unknown,
  kind?: Kind,
): error is Failure<Kind> => error instanceof Failure && (kind === undefined || error.kind === kind)

/**
 * True if the upstream could not be reached: the failure has the code of a connection error, or a
 * proxy reported one.
 */
export const isUnreachable = ({ kind, cause, facts }: Failure): boolean =>
  kind === 'upstream-error' &&
  (facts.unreachable === true || typeof (cause as { code?: unknown } | undefined)?.code === 'string')

/** The client's mistake: a request, a path or a value that cannot be read. */
export const malformed = (message: string, cause?: unknown): Failure =>
  new Failure('malformed', message, { source: 'client', cause })

/** The reason to abort with when the caller has left. */
export const cancelled = (what = 'the client left'): Failure => new Failure('cancelled', what, { source: 'client' })

/** The message of an error, for a log or an operator. */
export const wordsOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

/**
 * The code of an error or of its cause, such as ENOTFOUND, ECONNREFUSED or CERT_HAS_EXPIRED;
 * undefined if there is none.
 */
export function causeCode(error: unknown): string | undefined {
  for (
    let at = error as { code?: unknown; cause?: unknown } | null | undefined, levels = 0;
    at && levels < 8;
    levels++
  ) {
    if (typeof at.code === 'string') return at.code
    at = at.cause as typeof at
  }
  return undefined
}
