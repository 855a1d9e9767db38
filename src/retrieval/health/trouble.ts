// What an upstream is out for, and what it last did wrong, in words for the operator.
import type { Clock } from '../../core/clock.ts'
import { wordsOf } from '../../core/failure.ts'

/** `at`: milliseconds since the epoch. */
export type Trouble = { readonly at: number; readonly why: string }

export interface Told {
  /** Why it is out, or was last; undefined: it never was. */
  readonly why: string | undefined
  readonly lastTrouble: Trouble | undefined
}

export interface Telling extends Told {
  /** It did something wrong. */
  noted(error: unknown): void
  /** It did something wrong, and is out for it. */
  out(error: unknown): void
}

const longestWhy = 500

export function createTelling(clock: Clock): Telling {
  let why: string | undefined
  let lastTrouble: Trouble | undefined
  const noted = (error: unknown): Trouble => {
    lastTrouble = { at: clock.now(), why: wordsOf(error).slice(0, longestWhy) }
    return lastTrouble
  }
  return {
    noted,
    out(error) {
      why = noted(error).why
    },
    get why() {
      return why
    },
    get lastTrouble() {
      return lastTrouble
    },
  }
}
