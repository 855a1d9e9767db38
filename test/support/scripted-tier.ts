// A tier in the hand of a test: it holds blocks, and each call waits, fails or goes on as the test says.
import { setImmediate } from 'node:timers/promises'
import type { CID } from 'multiformats/cid'
import type { Tier, TierTraits } from '../../backends/tiers/contract.ts'
import { blockKey } from '../../src/core/cid.ts'
import { type Clock, orAborted, systemClock } from '../../src/core/clock.ts'
import { partOf } from '../../src/core/disk/peeked.ts'
import { Failure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { GuardedTier, type GuardOptions } from '../../src/retrieval/tiers/guarded-tier.ts'
import { TierStack } from '../../src/retrieval/tiers/tier-stack.ts'

const defaults: GuardOptions = { clock: systemClock, log: silentLog, maxBytes: 16 * 1024 * 1024 }

/** A guard that closes its tier. */
export function guarded(tier: Tier, options: Partial<GuardOptions> = {}): GuardedTier {
  const guard = new GuardedTier(tier, { ...defaults, ...options })
  const end = guard.close.bind(guard)
  return Object.assign(guard, {
    async close() {
      await end()
      await tier.close()
    },
  })
}

/** A stack as a tier, which closes its tiers. */
export function stackOf(tiers: readonly (Tier | GuardedTier)[], options: Partial<GuardOptions> = {}): TierStack & Tier {
  const guards = tiers.map((tier) => (tier instanceof GuardedTier ? tier : guarded(tier, options)))
  const stack = new TierStack(guards)
  const end = stack.close.bind(stack)
  return Object.assign(stack, {
    name: 'tiers',
    traits: { persistent: true, shared: true, trusted: true },
    get: async (cid: CID, signal?: AbortSignal) => (await stack.find(cid, signal))?.bytes,
    has: async (cid: CID, signal?: AbortSignal) => (await stack.find(cid, signal)) !== undefined,
    async put(cid: CID, bytes: Uint8Array, signal?: AbortSignal) {
      signal?.throwIfAborted()
      await orAborted(signal, Promise.resolve(stack.keep(cid, bytes)))
    },
    async close() {
      end()
      await Promise.all(guards.map((guard) => guard.close()))
    },
  })
}

export type ScriptedTier = Tier & {
  readonly held: Map<string, Uint8Array>
  readonly calls: string[]
  /** Every call fails. */
  isDown: boolean
  /** Calls wait until `release`, or their signal. */
  isSilent: boolean
  /** Each call takes so long, by this clock. */
  slowMs: number
  clock: Clock
  /** Calls that wait now. */
  readonly waiting: number
  release(): Promise<void>
}

const slowTraits: TierTraits = { persistent: true, shared: false, trusted: false }

export function scriptedTier(name: string, traits: Partial<TierTraits> = {}): ScriptedTier {
  const held = new Map<string, Uint8Array>()
  const calls: string[] = []
  const waiters = new Set<() => void>()
  async function step(what: string, key: string, signal: AbortSignal | undefined): Promise<void> {
    signal?.throwIfAborted()
    calls.push(`${what} ${key.slice(-4)}`)
    if (self.isDown) throw down()
    if (self.slowMs > 0) await self.clock.sleep(self.slowMs, signal)
    if (!self.isSilent) return
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    waiters.add(resolve)
    signal?.addEventListener('abort', () => reject(signal.reason), { once: true })
    await promise.finally(() => waiters.delete(resolve))
    if (self.isDown) throw down()
  }
  const isSlow = traits.persistent !== false || traits.shared
  const down = () => new Failure('upstream-error', `${name} is down for this test`, { source: 'tier' })
  const self: ScriptedTier = {
    name,
    traits: { ...slowTraits, ...traits },
    held,
    calls,
    isDown: false,
    isSilent: false,
    slowMs: 0,
    clock: systemClock,
    get waiting() {
      return waiters.size
    },
    async release() {
      for (const resolve of waiters) resolve()
      await setImmediate()
    },
    ...(!isSlow && {
      peek(cid: CID) {
        const bytes = held.get(blockKey(cid))
        return bytes && partOf(bytes, undefined)
      },
      putNow: (cid: CID, bytes: Uint8Array) => void held.set(blockKey(cid), bytes),
    }),
    async get(cid, signal) {
      // What a slow read answers is what was there when it began.
      const bytes = held.get(blockKey(cid))
      await step('get', blockKey(cid), signal)
      return bytes
    },
    async put(cid, bytes, signal) {
      await step('put', blockKey(cid), signal)
      held.set(blockKey(cid), bytes)
    },
    async has(cid, signal) {
      await step('has', blockKey(cid), signal)
      return held.has(blockKey(cid))
    },
    async delete(cid, signal) {
      await step('delete', blockKey(cid), signal)
      held.delete(blockKey(cid))
    },
    async close() {
      calls.push('close')
    },
  }
  return self
}
