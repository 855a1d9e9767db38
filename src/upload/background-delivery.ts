// The write-behind queue: brings accepted uploads to the providers and shared tiers that lack them, for as long as it takes.
// The ledger has what is due, by holder; nothing of it is only in memory, so a crash loses none of it.
import type { CID } from 'multiformats/cid'
import type { LocalStore, Provider, Upload } from '../../backends/pinning/contract.ts'
import type { Clock } from '../core/clock.ts'
import { isFailure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Entry, Standing, Store } from '../store/store.ts'
import { putBlocks, type UploadFanout } from './confirm.ts'
import { type Asks, asksAtOnce, type SharedUploads, type StandingAfter } from './provider-requests.ts'
import { nameOf, storedUpload } from './stored-upload.ts'

type DeliveryOptions = {
  readonly providers: readonly Provider[]
  /** The provider that keeps uploads in the store of this gateway. */
  readonly own: Provider | undefined
  readonly retrieval: UploadFanout
  readonly store: Pick<Store, 'ledger' | 'update' | 'forget' | 'trim'>
  /** Where blocks may lie on this machine, the store of this gateway first. */
  readonly places: readonly LocalStore[]
  readonly shared: SharedUploads
  readonly asks: Asks
  readonly standingAfter: StandingAfter
  /** Uploads that may wait for one shared tier, and their bytes that lie here for it alone. Beyond that the oldest are dropped. */
  readonly maxForTier: { readonly uploads: number; readonly bytes: number }
  readonly clock: Clock
  readonly log: Log
  readonly random: () => number
  readonly closing: AbortSignal
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

export interface BackgroundDelivery {
  /** Looks for what is due at each holder. */
  wake(): void
}

type Line = {
  readonly holder: string
  readonly atOnce: number
  /** Resolves when this is over, with where the holder stands now; undefined forgets it, `later` changes nothing. */
  readonly bring: (entry: Entry, upload: Upload, signal: AbortSignal) => Promise<Standing | undefined | 'later'>
  /** Read from the ledger when `changes` had this count. */
  rows: Entry[]
  changes: number
  running: number
  isChecking: boolean
  isWoken: boolean
  /** Failures of a tier since it last took an upload. */
  failures: number
  isPaused: boolean
  cancel: () => void
}

const tierAtOnce = 4
const minBackoffMs = 1000
const maxBackoffMs = 15_000
const rowsAtOnce = 64
/** A time beyond that was written under a clock that was set back since. */
const maxWaitMs = 24 * 3_600_000
const retryMs = 1000

/** The blocks are missing or damaged here. */
class Lost extends Error {}

export function createBackgroundDelivery(options: DeliveryOptions): BackgroundDelivery {
  const { providers, own, retrieval, store, shared, asks, standingAfter, maxForTier } = options
  const { places, clock, log, random, closing, track } = options
  const lines = new Map<string, Line>()
  let tiers = ''

  closing.addEventListener('abort', () => {
    for (const { cancel } of lines.values()) cancel()
  })

  function lineOf(holder: string, atOnce: number, bring: (line: Line) => Line['bring']): Line {
    const known = lines.get(holder)
    if (known) return known
    const line: Line = {
      ...{ holder, atOnce, rows: [], changes: -1, running: 0, failures: 0 },
      ...{ isChecking: false, isWoken: false, isPaused: false, cancel: () => {} },
      bring: (...of) => bring(line)(...of),
    }
    lines.set(holder, line)
    return line
  }

  const toProvider =
    (provider: Provider): Line['bring'] =>
    async (entry, upload, signal) => {
      const { name } = provider
      const tries = (entry.holders[name]?.tries ?? 0) + 1
      const attempt = await asks.ask(provider, upload, signal)
      const standing = standingAfter(attempt, tries)
      return provider === own ? { ...standing, kind: 'here' } : standing
    }

  async function bringBlocks(tier: string, upload: Upload, signal: AbortSignal): Promise<void> {
    const read = async function* () {
      try {
        yield* upload.blocks(signal)
      } catch (cause) {
        throw signal.aborted ? cause : new Lost(cause instanceof Error ? cause.message : String(cause), { cause })
      }
    }
    await putBlocks(read, (cid, bytes) => retrieval.bring(tier, cid, bytes, signal), signal)
  }

  const toTier =
    (tier: string) =>
    (line: Line): Line['bring'] =>
    async ({ cid }, upload, signal) => {
      try {
        await bringBlocks(tier, upload, signal)
        line.failures = 0
        return undefined
      } catch (error) {
        signal.throwIfAborted()
        if (error instanceof Lost) {
          log('error', 'upload.replication-failed', { tier, cid: nameOf(cid), why: error.message })
          return undefined
        }
        backOff(line, isFailure(error) ? (error.retryAfterMs ?? 0) : 0)
        return 'later'
      }
    }

  /** Those that were under way at once fail at once: that is one outage, and one rest. */
  function backOff(line: Line, askedMs: number): void {
    if (line.isPaused) return
    line.failures++
    const ms = Math.max(askedMs, minBackoffMs * 2 ** Math.min(10, line.failures - 1)) * (0.8 + 0.4 * random())
    const { uploads, bytes } = maxForTier
    const trimmed = store.trim(line.holder, uploads, bytes).then((count) => {
      if (count > 0) log('warn', 'upload.replication-abandoned', { tier: line.holder, uploads: count })
    })
    void track(trimmed).catch(() => {})
    pause(line, Math.min(maxBackoffMs, ms))
  }

  function pause(line: Line, ms: number): void {
    line.isPaused = true
    plan(line, ms)
  }

  function plan(line: Line, ms: number): void {
    line.cancel()
    line.cancel = clock.after(ms, () => {
      line.isPaused = false
      void check(line)
    })
  }

  /** Drops deliveries to tiers that are no longer configured. */
  async function forgetGone(): Promise<void> {
    const now = [...retrieval.sharedTiers].sort().join()
    if (now === tiers) return
    tiers = now
    const { holders } = await store.ledger.waiting()
    for (const { holder, kind, uploads } of holders) {
      if (kind !== 'tier' || retrieval.sharedTiers.includes(holder)) continue
      log('warn', 'upload.replication-cancelled', { tier: holder, uploads })
      await store.forget(holder)
    }
  }

  async function check(line: Line): Promise<void> {
    line.isWoken = true
    if (line.isChecking) return
    line.isChecking = true
    try {
      while (line.isWoken && !closing.aborted && !line.isPaused) {
        line.isWoken = false
        await startDue(line)
      }
    } catch (error) {
      if (!closing.aborted) {
        log('error', 'upload.queue-failed', { holder: line.holder, error: String(error) })
        plan(line, retryMs)
      }
    } finally {
      line.isChecking = false
    }
  }

  async function startDue(line: Line): Promise<void> {
    const { holder } = line
    // After a failure one upload goes alone, as a test.
    const atOnce = line.failures > 0 ? 1 : line.atOnce
    let someAreAsked = false
    for (let isRead = false; line.running < atOnce && !line.isPaused && !closing.aborted; ) {
      const row = line.changes === shared.changes ? line.rows[0] : undefined
      const waitMs = row ? waitOf(row, holder) : 0
      if (row && waitMs <= 0) {
        line.rows.shift()
        const name = nameOf(row.cid)
        if (!shared.isAsking(name, holder) && !shared.isAlone(name)) start(line, row)
        continue
      }
      if (isRead) {
        if (row || someAreAsked) plan(line, row ? waitMs : retryMs)
        return
      }
      isRead = true
      line.changes = shared.changes
      line.rows = await shared.unasked(holder, async () => {
        const due = await store.ledger.due(holder, rowsAtOnce)
        someAreAsked = due.length === rowsAtOnce
        return due
      })
    }
  }

  function waitOf({ holders }: Entry, holder: string): number {
    const ms = (holders[holder]?.notBefore ?? 0) - clock.now()
    return ms > maxWaitMs ? 0 : ms
  }

  function start(line: Line, entry: Entry): void {
    line.running++
    const changes = shared.changes
    const upload = storedUpload(entry, places)
    const stop = new AbortController()
    const done = line
      .bring(entry, upload, AbortSignal.any([closing, stop.signal]))
      .then((standing) => write(line, entry.cid, standing, changes))
    shared.asking(nameOf(entry.cid), line.holder, { stop, done })
    const over = done
      .catch((error: unknown) => {
        // Deleted meanwhile, or the ledger could not be written: it is due as before.
        if (closing.aborted) return
        log('warn', 'upload.delivery-failed', { cid: nameOf(entry.cid), holder: line.holder, why: String(error) })
        pause(line, retryMs)
      })
      .finally(() => {
        line.running--
        void check(line)
      })
    void track(over)
  }

  async function write(line: Line, cid: CID, standing: Standing | undefined | 'later', changes: number): Promise<void> {
    if (standing === 'later') return
    const { holder } = line
    if (standing && standing.state !== 'pinned' && shared.changes !== changes) {
      // An operator may have given up on it; one that holds it all the same says so.
      const now = await store.ledger.find(cid)
      if (now?.holders[holder]?.state !== 'pending') return
    }
    await store.update(cid, { [holder]: standing })
  }

  return {
    wake() {
      if (closing.aborted) return
      void track(forgetGone().catch(() => {}))
      for (const provider of providers) void check(lineOf(provider.name, asksAtOnce, () => toProvider(provider)))
      for (const tier of retrieval.sharedTiers) void check(lineOf(tier, tierAtOnce, toTier(tier)))
    },
  }
}
