// When a question may go to an upstream: within what it allows us a minute, while it is well, and when it has a slot.
import { LRUCache } from 'lru-cache'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import { upTo } from '../../core/lru.ts'
import type { Health } from '../health/health.ts'
import type { LoopTurns } from '../turns/loop-turns.ts'
import { type Allowance, createAllowance } from './allowance.ts'
import type { Rank } from './fair-queue.ts'
import { createSlots, type Slot } from './slots.ts'
import type { Window } from './window.ts'

export type AdmissionRequest = {
  readonly key: string
  readonly rank?: Rank
  readonly client?: string
  /** How much of its time it has spent already. */
  readonly waitedMs?: number
}

export interface UpstreamAdmission {
  /** How long the budgets make a question for this key wait. */
  budgetMs(key: string): number
  /** How long until it is tried although it cools down, which it does by a guess; undefined otherwise. */
  readonly triesInMs: number | undefined
  /** How long a question would wait for its slot now. */
  readonly waitMs: number
  readonly queued: number
  /** What the operator allows it a minute, and how much of that went; undefined: there is no such limit. */
  readonly budget: { readonly perMinute: number; readonly used: number } | undefined
  enter(want: AdmissionRequest, signal: AbortSignal): Promise<Slot>
  /** The upstream answered a question, or so many, that began then. */
  alive(beganAt: number, answers: number): void
  /** The health of the upstream has changed. */
  look(): void
  /** The upstream is out: its slots are free for when it is back. */
  setAside(): void
  /** The upstream is out: callers queued before that moment need not wait for it. */
  turnAway(before: number): void
}

export type UpstreamAdmissionOptions = {
  readonly name: string
  readonly clock: Clock
  /** Shared with all that takes turns on this loop. */
  readonly turns: LoopTurns
  readonly health: Health
  readonly window: Window
  readonly connections: number
  readonly perMinute: number | undefined
  readonly perCidPerMinute: number | undefined
  readonly patienceMs: () => number
  readonly lateMs: () => number
  /** All slots are held by late questions, and readers wait. */
  readonly onStuck: () => void
  /** Called when a request waits for it although it rests. */
  readonly onWanted: () => void
  /** Whether probes decide when a rest is over. Without, it is tried now and then. */
  readonly isProbed: () => boolean
}

const tryEveryMs = 1_000
const mostCids = 10_000
const mostRetryMs = 30_000

export function createUpstreamAdmission(options: UpstreamAdmissionOptions): UpstreamAdmission {
  const { name, clock, health, window, connections, perMinute, perCidPerMinute } = options
  const minute = perMinute === undefined ? undefined : createAllowance(perMinute, clock)
  const cids = perCidPerMinute === undefined ? undefined : new LRUCache<string, Allowance>(upTo(mostCids))
  let tryAt = 0

  const slots = createSlots({
    name,
    most: connections,
    window,
    clock,
    turns: options.turns,
    waitMs,
    lateMs: options.lateMs,
    onStuck: options.onStuck,
    tooLate: (ms) => (health.state === 'ready' ? overloaded(name, ms) : out()),
    onTaken() {
      minute?.take()
      tryAt = clock.monotonic() + tryEveryMs
    },
  })

  function waitMs(): number {
    switch (health.state) {
      case 'ready':
        return minute?.waitMs ?? 0
      case 'resting': {
        const untilMs = health.untilMs ?? Number.POSITIVE_INFINITY
        return options.isProbed() ? untilMs : Math.min(untilMs, Math.max(0, tryAt - clock.monotonic()))
      }
      case 'cooling-down':
        return Math.min(health.untilMs ?? 0, triesInMs() ?? Number.POSITIVE_INFINITY)
      case 'unusable':
      case 'quarantined':
        return Math.max(0, tryAt - clock.monotonic())
      default:
        return Number.POSITIVE_INFINITY
    }
  }

  const triesInMs = (): number | undefined =>
    health.state === 'cooling-down' && health.isGuess ? Math.max(0, tryAt - clock.monotonic()) : undefined

  /** One that rests without probes, that no probe found usable, that sent a false block, or that cools down by a guess, is tried now
   * and then: all it sends is proved. */
  function mayEnter(): boolean {
    const isTried = tryAt > clock.monotonic()
    switch (health.state) {
      case 'ready':
        return true
      case 'resting':
        return options.isProbed() || !isTried
      case 'unusable':
      case 'quarantined':
        return !isTried
      case 'cooling-down':
        return !isTried && health.isGuess
      default:
        return false
    }
  }

  function ofCid(key: string): Allowance | undefined {
    if (cids === undefined || perCidPerMinute === undefined) return undefined
    let found = cids.get(key)
    if (!found) cids.set(key, (found = createAllowance(perCidPerMinute, clock)))
    return found
  }

  const out = () =>
    new Failure('unavailable', `${name} cannot be asked now (${health.state})`, {
      source: 'upstream',
      retryAfterMs: triesInMs() ?? health.untilMs,
    })

  /** One that said when it can be asked again is waited for, where that is in time. */
  async function cooled(giveUpAt: number, signal: AbortSignal): Promise<void> {
    while (health.state === 'cooling-down' && !mayEnter()) {
      const ms = health.untilMs ?? 0
      if (clock.monotonic() + ms > giveUpAt) throw out()
      await clock.sleep(Math.max(1, ms), signal)
    }
  }

  async function budget(key: string, giveUpAt: number, signal: AbortSignal): Promise<void> {
    const own = ofCid(key)
    if (!own) return
    for (let ms = own.waitMs; ms > 0; ms = own.waitMs) {
      if (clock.monotonic() + ms > giveUpAt) {
        throw overloaded(name, ms)
      }
      await clock.sleep(ms, signal)
    }
    own.take()
  }

  return {
    budgetMs: (key) => Math.max(minute?.waitMs ?? 0, ofCid(key)?.waitMs ?? 0),
    get triesInMs() {
      return triesInMs()
    },
    get waitMs() {
      return slots.expectedWaitMs
    },
    get queued() {
      return slots.queued
    },
    get budget() {
      return minute && perMinute !== undefined ? { perMinute, used: minute.used } : undefined
    },
    async enter({ key, rank = 'first', client = '', waitedMs = 0 }, signal) {
      signal.throwIfAborted()
      const giveUpAt = clock.monotonic() + options.patienceMs() - waitedMs
      if (cids) await budget(key, giveUpAt, signal)
      if (health.state === 'cooling-down') await cooled(giveUpAt, signal)
      if (health.state === 'resting') options.onWanted()
      if (!mayEnter()) throw out()
      const slot = await slots.take({ rank, client }, giveUpAt, signal)
      if (!signal.aborted) return slot
      slot.leave()
      throw signal.reason
    },
    alive: slots.alive,
    look: slots.look,
    setAside: slots.setAside,
    turnAway: (before) => slots.flush(before, out),
  }
}

const overloaded = (name: string, waitMs: number): Failure =>
  new Failure('overloaded', `${name} is overloaded: its queue is too long to be asked in time`, {
    source: 'ours',
    retryAfterMs: Math.min(mostRetryMs, waitMs),
  })
