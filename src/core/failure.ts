// What went wrong, whose fault it was, and when to try again. Never an HTTP status: http/wire/problem.ts has the one
// table that turns a Failure into one. Imports nothing of ours.

export const failureKinds = [
  'not-found', // asked, and it is not there (an upstream's 404, a block that no upstream has)
  'no-link', // proved absent: the directory is here and has no such name
  'throttled', // 429, or 503 with Retry-After: rate limited, and healthy
  'refused', // 401, 403, 410, 451, a challenge page: asking again does not help
  'timeout', // a deadline passed
  'slow', // the client sends less than it has to
  'broken', // connection cut or refused, 5xx, wrong type, not what was asked for
  'false-bytes', // bytes that do not hash to their CID
  'unavailable', // no upstream could be asked: all are cooling down or broken, or none is configured
  'too-large', // over a limit of ours
  'denied', // on a denylist of the operator
  'malformed', // the request, or verified content, is malformed
  'unsupported', // valid, and not supported here
  'overloaded', // the gateway has too much to do now
  'no-room', // the gateway's disk is full
  'disk', // the gateway's disk fails
  'cancelled', // the client left
  'internal', // a bug of the gateway
] as const

/** What went wrong. */
export type FailureKind = (typeof failureKinds)[number]
/** Whose fault it was. */
export type FailureSource = 'client' | 'upstream' | 'tier' | 'provider' | 'content' | 'ours'

/** What a Failure knows beside its kind and its message. */
/** What those who handle a Failure may need besides its kind. Each is read somewhere; nothing is noted for its own sake. */
export type Facts = {
  /** Every upstream there is was asked and said no: the absence is proved, as far as it can be. */
  readonly sure: boolean
  /** An upstream answered later questions first: it searches for this one. */
  readonly isSearching: boolean
  /** An upstream that may have it could not be asked, and may be back at any moment: no absence to be remembered. */
  readonly unasked: boolean
  /** There is no upstream: what the tiers say is all there is to know. */
  readonly alone: boolean
  /** The request asked for nothing but what is here. */
  readonly onlyIfCached: boolean
  /** An upstream does not speak this format. */
  readonly refuses: 'format'
  /** The upstream itself failed (5xx). */
  readonly isIll: boolean
  /** A proxy in front of an upstream could not reach it. */
  readonly unreachable: boolean
  /** A denylist gives a legal reason. */
  readonly legal: boolean
  /** What is wrong with a document, by place. */
  readonly errors: readonly object[]
  /** The part of a path that is a value inside a document. */
  readonly remainder: string
  /** Why a file could not be locked. */
  readonly trouble: 'taken' | 'no-locks' | 'unwritable'
  /** What a provider's failure means for the next attempt. */
  readonly class: 'auth' | 'quota' | 'transient' | 'content'
  /** The outcome at each provider that was asked. */
  readonly outcomes: readonly Outcome[]
  /** The host that an upload was forwarded to (thin mode). */
  readonly service: string
  /** What a token may still upload today. */
  readonly quota: QuotaRest
}

type Rest = { readonly most: number; readonly left: number }
export type QuotaRest = { readonly token: string; readonly uploads?: Rest; readonly bytes?: Rest }

export type Outcome = {
  readonly provider: string
  readonly outcome: string
  readonly detail?: string
  readonly ms?: number
}

/** Any of these kinds may come from a provider. */
type OfProviders = 'class' | 'outcomes' | 'service'

type FactNames = {
  readonly 'not-found': 'sure' | 'unasked' | 'alone' | 'onlyIfCached'
  readonly timeout: 'sure' | 'unasked' | 'isSearching'
  readonly unavailable: 'sure' | 'alone'
  readonly overloaded: 'sure'
  readonly throttled: 'quota'
  readonly broken: 'refuses' | 'isIll' | 'unreachable'
  readonly refused: 'refuses' | 'trouble'
  readonly denied: 'legal'
  readonly malformed: 'errors'
  readonly unsupported: 'remainder'
}

/** The facts that a Failure of this kind may have. */
export type FactsOf<Kind extends FailureKind> = Partial<
  Pick<Facts, OfProviders | (Kind extends keyof FactNames ? FactNames[Kind] : never)>
>

export type FailureOptions<Kind extends FailureKind = FailureKind> = {
  readonly source: FailureSource
  /** When it may be worth asking again. */
  readonly retryAfterMs?: number | undefined
  readonly cause?: unknown
  readonly facts?: FactsOf<Kind> | undefined
}

/** What V8 adds to the language: scripts of a page are checked against this file, too. */
const engine = Error as ErrorConstructor & { stackTraceLimit: number }

export class Failure<Kind extends FailureKind = FailureKind> extends Error {
  readonly kind: Kind
  readonly source: FailureSource
  readonly retryAfterMs: number | undefined
  readonly facts: Partial<Facts>

  /** `message`: what happened, to which named thing, what to do next. Never a secret. */
  constructor(kind: Kind, message: string, options: FailureOptions<Kind>) {
    // Where an expected failure was made says nothing, and walking the stack is most of what it costs.
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

/** The upstream could not be reached: the failure has the code of a connection error, or a proxy said so. */
export const isUnreachable = ({ kind, cause, facts }: Failure): boolean =>
  kind === 'broken' &&
  (facts.unreachable === true || typeof (cause as { code?: unknown } | undefined)?.code === 'string')

/** The reason to abort with when the caller is gone. */
export const cancelled = (what = 'the client left'): Failure => new Failure('cancelled', what, { source: 'client' })

/** What an error says, for a log or an operator. */
export const wordsOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

/** The code of an error, or of what caused it: ENOTFOUND, ECONNREFUSED, CERT_HAS_EXPIRED. Undefined: there is none. */
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
