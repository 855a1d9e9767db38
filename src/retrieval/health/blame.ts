// What the failure of a question says of the upstream: that it lacks something, asks for patience, lies, or is not well.
// An absence says nothing of it until another upstream turns out to have the thing.
import { type Failure, type FailureKind, isFailure } from '../../core/failure.ts'

export type Blame = {
  readonly count: (what: 'notFound' | 'throttled' | 'failed' | 'falseBytes') => void
  /** The upstream gave any answer at all. */
  readonly answered: () => void
  readonly lacks: () => void
  readonly throttled: (failure: Failure) => void
  readonly lied: () => void
  /** The upstream failed before anything came, or was silent although another one had the block. */
  readonly failed: (error: unknown) => void
  /** The upstream failed in the middle of its answer. */
  readonly gaveOut: () => void
  /** The upstream was silent, and the reason is not known yet. */
  readonly wondered: () => void
}

export const kindOf = (error: unknown): FailureKind => (isFailure(error) ? error.kind : 'internal')

/** Undefined: all is said. Else: what to say if another upstream has it. */
export function blameFor(error: unknown, isBegun: boolean, blame: Blame): (() => void) | undefined {
  const kind = kindOf(error)
  switch (kind) {
    case 'cancelled':
    case 'overloaded': // this gateway had no means to ask
      return undefined
    case 'not-found':
    case 'refused':
      blame.count('notFound')
      if (kind === 'not-found') blame.answered()
      return blame.lacks
    case 'throttled':
      blame.count('throttled')
      if (isFailure(error)) blame.throttled(error)
      return undefined
    case 'false-bytes':
      blame.count('falseBytes')
      blame.lied()
      return undefined
    default:
      blame.count('failed')
      if (isBegun) blame.gaveOut()
      else if (kind !== 'timeout') blame.failed(error)
      else {
        blame.wondered()
        return () => blame.failed(error)
      }
      return undefined
  }
}
