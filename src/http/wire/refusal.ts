// A refusal that only HTTP knows: a method, a missing length, a range past the end. It names its status itself; every
// other Failure gets one from the table in problem.ts.
import type { ServerResponse } from 'node:http'
import { Failure, type FailureKind, type FailureOptions } from '../../core/failure.ts'

export type RefusalOptions = Omit<FailureOptions, 'facts'> & {
  readonly status: number
  /** The size of the representation, for a range. */
  readonly size?: number
}

export class HttpRefusal extends Failure {
  readonly status: number
  readonly size: number | undefined

  constructor(kind: FailureKind, message: string, { status, size, ...options }: RefusalOptions) {
    super(kind, message, options)
    this.status = status
    this.size = size
  }
}

/** What the server refused before there was a request to hand on: it is no HTTP, too long, or did not arrive in time. */
export type ParserRefusal = {
  readonly status: number
  /** What the client was told. */
  readonly why: string
  /** What the client was told as `X-Request-Id`. */
  readonly requestId: string
  /** Of the socket: what a proxy might say of its client was not read. */
  readonly address: string
  /** Where only the rest of a request was refused: what its handler was about to answer. */
  readonly response: ServerResponse | undefined
}
