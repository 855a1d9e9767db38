// Shares rate-limit counts with other instances; undefined if this instance counts alone.
import { createTelling, type Telling } from '../core/counting/telling.ts'
import { takeTally } from './backends.ts'
import type { Whole } from './whole.ts'

export function takeTelling(whole: Whole): Telling | undefined {
  const { clock, log, lease } = whole
  const tally = takeTally(whole)
  return (
    tally &&
    lease.take(
      'telling',
      [tally],
      () => createTelling({ add: tally.add, clock, log }),
      (telling) => telling.close(),
    )
  )
}
