// A refusal specific to HTTP: a method, a missing length, a range past the end. It carries its
// status; every other Failure gets one from the table in problem.ts.
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

/**
 * A refusal by the server before there was a request to handle: malformed, too long, or not
 * received in time.
 */
export type ParserRefusal = {
  readonly status: number
  /** The reason sent to the client. */
  readonly why: string
  /** The `X-Request-Id` sent to the client. */
  readonly requestId: string
  /** The address of the socket: forwarding headers were not read. */
  readonly address: string
  /** If only the rest of a request was refused: the response that its handler was about to send. */
  readonly response: ServerResponse | undefined
}
