// What went wrong, whose it was, and when to come back. Never a status: http/wire/problem.ts has the one
// table that turns a Failure into one. Imports nothing of ours.

export const failureKinds = [
  'not-found', // asked, and it is not there (an upstream's 404, a block nobody has)
  'no-link', // proved absent: the directory is here and has no such name
  'throttled', // 429, or 503 with Retry-After: come back later, nobody is ill
  'refused', // 401, 403, 410, 451, a challenge page: it will not, and asking again does not help
  'timeout', // a clock of ours ran out
  'broken', // cut, refused connection, 5xx, wrong type, not what was asked for
  'false-bytes', // bytes that do not hash to their CID
  'unavailable', // nobody could be asked: all cooling down, broken, or none configured
  'too-large', // over a limit of ours
  'denied', // an operator's list says no
  'malformed', // the request, or content that was proved, makes no sense
  'unsupported', // makes sense, and we do not do it
  'overloaded', // we have too much to do just now
  'cancelled', // the client left: nobody's fault
  'internal', // ours: a bug
] as const

/** What went wrong. */
export type FailureKind = (typeof failureKinds)[number]
/** Whose fault it was. */
export type FailureSource = 'client' | 'upstream' | 'tier' | 'provider' | 'content' | 'ours'

/** What a Failure knows beside its kind and its message. */
export type FailureOptions = {
  readonly source: FailureSource
  /** When it may be worth asking again. */
  readonly retryAfterMs?: number | undefined
  readonly cause?: unknown
  /** Facts for the table at the edge that are no sentence: `{ reason: 'legal' }`, `{ missing: cid }`. */
  readonly facts?: Readonly<Record<string, unknown>> | undefined
}

/** Everything that a gateway or a backend fails with: `kind` says what happened, `source` whose fault it was. */
export class Failure extends Error {
  readonly kind: FailureKind
  readonly source: FailureSource
  readonly retryAfterMs: number | undefined
  readonly facts: Readonly<Record<string, unknown>>

  /** `message`: what happened, to which named thing, what to do next. Never a secret. */
  constructor(kind: FailureKind, message: string, options: FailureOptions) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = 'Failure'
    this.kind = kind
    this.source = options.source
    this.retryAfterMs = options.retryAfterMs
    this.facts = options.facts ?? {}
  }
}

/** Whether an error is a Failure, of this kind where one is named. */
export const isFailure = (error: unknown, kind?: FailureKind): error is Failure =>
  error instanceof Failure && (kind === undefined || error.kind === kind)

/** The reason to abort with when whoever asked is gone. */
export const cancelled = (what = 'the client left'): Failure => new Failure('cancelled', what, { source: 'client' })
