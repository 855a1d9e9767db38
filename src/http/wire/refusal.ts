// A refusal that only HTTP knows: a method, a missing length, a range past the end. It names its status itself; every
// other Failure gets one from the table in problem.ts.
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
