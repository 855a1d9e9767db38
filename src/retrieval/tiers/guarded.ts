// A tier that cannot hold up a request. It watches each call, tells the caller when waiting is no longer worth it, and skips a
// tier that keeps failing (Failure `unavailable`) until a trial that no request waits for succeeds. It never skips reads of
// this machine's own disk for being slow, or for one unreadable file: the block may be nowhere else. It judges reads and
// writes apart: a full disk can still be read.
import type { Tier } from '../../../backends/tiers/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { withDeadline } from '../../core/deadline.ts'
import { Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { createHistogram, type Histogram } from '../../observe/histogram.ts'
import { createWatch, type Watch } from './watch.ts'
import { silent } from './watched-call.ts'

export type GuardOptions = {
  readonly clock: Clock
  readonly log: Log
  /** When a read is given up. By default what the tier says of itself. */
  readonly deadlineMs?: number
  readonly writeDeadlineMs?: number
  readonly failures?: number
  readonly firstMs?: number
  readonly mostMs?: number
}

export type GuardedTier = Tier & {
  /** Reads are passed over now. */
  readonly isDown: boolean
  /** Calls that failed or took too long. */
  readonly failures: number
  readonly patienceMs: number
  /** How long its answers took. */
  readonly took: { readonly reads: Histogram; readonly writes: Histogram }
}

const usualDeadlineMs = 1000
const writesTake = 10
const probeMs = 10_000
// A store is used again within five seconds, however long it was away.
const mostPauseMs = 3_500
const readTimes = { firstMs: 100, leastMs: 25, factor: 2, mostMs: 500, lineMs: 250 } as const
// A block on this machine is worth waiting for longer than asking an upstream, also while the machine is busy.
const localTimes = { firstMs: 250, leastMs: 250, factor: 2, mostMs: 1000, lineMs: 500 } as const
// An upload may be 200 ms later for a store that hangs, and waits longer for one that is known to take longer.
const writeTimes = { firstMs: 150, leastMs: 25, factor: 1.5, mostMs: 500, lineMs: 1000 } as const

const isSomething = (bytes: Uint8Array | undefined): boolean => bytes !== undefined

export function guarded(tier: Tier, options: GuardOptions): GuardedTier {
  const { clock, log, failures, firstMs } = options
  const { records, atHand } = tier
  const deadlineMs = options.deadlineMs ?? tier.deadlineMs ?? usualDeadlineMs
  const writeDeadlineMs = options.writeDeadlineMs ?? deadlineMs * writesTake
  const breaker = {
    ...(failures !== undefined && { failures }),
    ...(firstMs !== undefined && { firstMs }),
    mostMs: options.mostMs ?? mostPauseMs,
  }
  // This machine's own disk is waited for also where it has mostly had nothing.
  const hadIt = tier.traits.shared ? isSomething : undefined
  const took = { reads: createHistogram(), writes: createHistogram() }
  const reads = watch('reads', { ...(tier.traits.shared ? readTimes : localTimes), deadlineMs })
  const writes = watch('writes', { ...writeTimes, deadlineMs: writeDeadlineMs })

  function watch(what: 'reads' | 'writes', times: Record<keyof typeof readTimes | 'deadlineMs', number>): Watch {
    return createWatch({
      ...times,
      onAnswered: (ms) => took[what].observe(ms / 1000),
      clock,
      name: tier.name,
      announces: tier.announces ?? false,
      slowIsFailure: tier.traits.shared,
      silenceOnly: what === 'reads' && !tier.traits.shared,
      breaker,
      onChange(state, reason) {
        if (state === 'open') log('warn', 'tier.circuit-open', { tier: tier.name, what, reason })
        else log('info', 'tier.circuit-closed', { tier: tier.name, what })
      },
    })
  }

  return {
    name: tier.name,
    traits: tier.traits,
    deadlineMs,
    get: (cid, signal, call) => reads.run(signal, call, (own, begun) => tier.get(cid, own, { begun }), hadIt),
    ...(atHand && { atHand: (cid, how) => (reads.isOpen ? undefined : atHand(cid, how)) }),
    put: (cid, bytes, signal, call) => writes.run(signal, call, (own, begun) => tier.put(cid, bytes, own, { begun })),
    has: (cid, signal, call) => reads.run(signal, call, (own, begun) => tier.has(cid, own, { begun })),
    delete: (cid, signal, call) => writes.run(signal, call, (own, begun) => tier.delete(cid, own, { begun })),
    ...(tier.lacks && { lacks: (cid) => tier.lacks?.(cid) ?? false }),
    ...(tier.holds && { holds: (cid) => tier.holds?.(cid) ?? false }),
    ...(records && {
      records: {
        read: (key, signal, call) => reads.run(signal, call, (own, begun) => records.read(key, own, { begun })),
        replace: (key, bytes, how, signal, call) =>
          writes.run(signal, call, (own, begun) => records.replace(key, bytes, how, own, { begun })),
      },
    }),
    async probe(signal) {
      try {
        const late = () => silent(tier.name, probeMs)
        await withDeadline({ ms: probeMs, clock, signal, late }, async (own) => tier.probe?.(own))
      } catch (error) {
        if (!signal?.aborted) {
          const why = error instanceof Failure ? error.message : 'an unexpected error'
          reads.trip(why)
          writes.trip(why)
        }
        throw error
      }
    },
    close: () => tier.close(),
    took,
    get isDown() {
      return reads.isOpen
    },
    get failures() {
      return reads.failures + writes.failures
    },
    get patienceMs() {
      return reads.patienceMs
    },
  }
}
