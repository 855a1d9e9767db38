// How many questions an upstream bears at once, learned as TCP learns a window: it grows with answers while it is full,
// and shrinks when answers get late or fail.

import type { Clock } from '../../core/clock.ts'
import { createLatency } from '../health/latency.ts'

export interface Window {
  /** How many may wait for their first byte at once. */
  readonly size: number
  /** The window has shrunk just now because answers were late. */
  readonly isCrowded: boolean
  /** A question was answered. `wasFull`: it was asked when the window was full. */
  answered(ms: number, beganAt: number, wasFull: boolean): void
  /** The upstream failed at a question, or throttled it. */
  failed(beganAt: number): void
  /** The upstream is out: the window grows again from one question. */
  close(): void
  /** A probe found the upstream well. */
  open(): void
}

const firstSize = 16
// Gateways search: even late answers never take a window below this, only failures do.
const leastWhenLate = 4
const lateLeastMs = 500
const lateTimes = 3
const lateAnswers = 8
const lateShrinks = 0.75
const failureShrinks = 0.5
const steepLeast = 8
const crowdedMs = 5_000
const spellMs = 60_000

export function createWindow(most: number, clock: Clock): Window {
  let size = Math.min(firstSize, most)
  let steepUntil = most // below this it doubles with each round of answers
  let lateAt = Number.NEGATIVE_INFINITY
  let shrunkAt = Number.NEGATIVE_INFINITY
  // What an answer takes at least while there is no crowd, in this spell and the one before.
  let before: number | undefined
  let least: number | undefined
  let spell = createLatency(clock)
  let spellAt = clock.monotonic()
  let last: number[] = []

  const isCrowded = () => clock.monotonic() - lateAt < crowdedMs

  /**
   * Some answers take long because of what is asked for; late is an upstream from which no quick ones come any more.
   */
  function isLate(ms: number): boolean {
    const now = clock.monotonic()
    if (now - spellAt > spellMs && !isCrowded()) {
      before = least
      least = undefined
      spell = createLatency(clock)
      spellAt = now
    }
    spell.note(ms)
    last = [...last, ms].slice(-lateAnswers)
    if (last.length < lateAnswers) return false
    least = Math.min(least ?? Number.POSITIVE_INFINITY, spell.leastMs ?? ms)
    return Math.min(...last) > Math.max(lateLeastMs, Math.min(before ?? least, least) * lateTimes)
  }

  /** Once for all that were under way at that moment. */
  function shrink(beganAt: number, share: number, least: number): void {
    if (beganAt < shrunkAt) return
    shrunkAt = clock.monotonic()
    size = Math.min(size, Math.max(Math.min(least, most), size * share))
    steepUntil = Math.max(size, steepLeast)
  }

  return {
    get size() {
      return Math.max(1, Math.floor(size))
    },
    get isCrowded() {
      return isCrowded()
    },
    answered(ms, beganAt, wasFull) {
      if (isLate(ms)) {
        lateAt = clock.monotonic()
        return shrink(beganAt, lateShrinks, leastWhenLate)
      }
      if (wasFull) size = Math.min(most, size + (size < steepUntil ? 1 : 1 / size))
    },
    failed: (beganAt) => shrink(beganAt, failureShrinks, 1),
    open() {
      size = Math.max(size, Math.min(steepLeast, most))
    },
    close() {
      size = 1
      steepUntil = most
      shrunkAt = clock.monotonic()
    },
  }
}
