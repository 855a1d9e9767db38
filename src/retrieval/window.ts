// How many questions an upstream bears at once, learned as TCP learns a window: it grows with answers while it is full,
// and shrinks when answers get late or fail.

import type { Clock } from '../clock.ts'
import { createLatency } from './latency.ts'

export interface Window {
  /** How many may wait for their first byte at once. */
  readonly size: number
  /** One was answered. `wasFull`: it was asked when the window was full. */
  answered(ms: number, beganAt: number, wasFull: boolean): void
  /** It failed at one, or asked for patience. */
  failed(beganAt: number): void
  /** It was out: from one question on, anew. */
  close(): void
}

const firstSize = 16
// Gateways search: a late answer alone never takes a window below this, only failures do.
const leastWhenLate = 8
const lateLeastMs = 1000
const lateTimes = 3
const lateShrinks = 0.9
const failureShrinks = 0.5
const calmWindowMs = 60_000

export function createWindow(most: number, clock: Clock): Window {
  let size = Math.min(firstSize, most)
  let steepUntil = most // below this it doubles with each round of answers
  let shrunkAt = Number.NEGATIVE_INFINITY
  // What an answer takes while there is no crowd: the least of the typical times of the last two spells.
  let calm: number | undefined
  let spell = createLatency(clock)
  let spellAt = clock.monotonic()

  const baseMs = (): number | undefined => {
    const now = spell.typicalMs
    return calm === undefined || now === undefined ? (calm ?? now) : Math.min(calm, now)
  }

  function note(ms: number): void {
    const now = clock.monotonic()
    if (now - spellAt > calmWindowMs) {
      calm = spell.typicalMs
      spell = createLatency(clock)
      spellAt = now
    }
    spell.note(ms)
  }

  /** Once for all that were under way at that moment. */
  function shrink(beganAt: number, share: number, least: number): void {
    if (beganAt < shrunkAt) return
    shrunkAt = clock.monotonic()
    size = Math.min(size, Math.max(Math.min(least, most), size * share))
    steepUntil = size
  }

  return {
    get size() {
      return Math.max(1, Math.floor(size))
    },
    answered(ms, beganAt, wasFull) {
      const base = baseMs()
      note(ms)
      if (base !== undefined && ms > Math.max(lateLeastMs, base * lateTimes)) {
        return shrink(beganAt, lateShrinks, leastWhenLate)
      }
      if (wasFull) size = Math.min(most, size + (size < steepUntil ? 1 : 1 / size))
    },
    failed: (beganAt) => shrink(beganAt, failureShrinks, 1),
    close() {
      size = 1
      steepUntil = most
      shrunkAt = clock.monotonic()
    },
  }
}
