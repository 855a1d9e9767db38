// The write-behind queue: brings accepted uploads to the providers and shared tiers that lack them, for as long as it takes.
// The ledger has what is due, by holder; nothing of it is only in memory, so a crash loses none of it.
import type { CID } from 'multiformats/cid'
import type { LocalStore, Provider, Upload } from '../../backends/pinning/contract.ts'
import { isFailure, wordsOf } from '../core/failure.ts'
import type { Entry, Standing } from '../store/store.ts'
import { putBlocks } from './confirm.ts'
import { type HolderRequest, maxPins, type UploadContext } from './provider-requests.ts'
import { nameOf, storedUpload } from './stored-upload.ts'

type DeliveryOptions = UploadContext & {
  /** Stores of this machine that may have the blocks, the store of this gateway first. */
  readonly places: readonly LocalStore[]
  /** Uploads that may wait for one shared tier, and the bytes that are stored for it alone. Beyond that the oldest are dropped. */
  readonly maxForTier: { readonly uploads: number; readonly bytes: number }
  readonly random: () => number
}

/** The deliveries to one holder. */
type Line = {
  readonly holder: string
  readonly maxRunning: number
  readonly deliver: Deliver
  readonly running: Set<Promise<void>>
  /** Failures of a tier since it last took an upload. */
  failures: number
  /** Nothing begins for so long. */
  pauseMs: number
  isWoken: boolean
  /** Ends the time in which nothing is due. */
  wake: () => void
}

/** Resolves with the new state of the holder; undefined forgets it, `later` changes nothing. */
type Deliver = (
  line: Line,
  entry: Entry,
  upload: Upload,
  signal: AbortSignal,
) => Promise<Standing | undefined | 'later'>

const maxForTierAtOnce = 4
const minBackoffMs = 1000
const maxBackoffMs = 15_000
const maxRows = 64
/** A time beyond that was written under a clock that was set back since. */
const maxWaitMs = 24 * 3_600_000
const retryMs = 1000

/** Returns a function that looks for what is due at each holder. */
export function createBackgroundDelivery(options: DeliveryOptions): () => void {
  const { providers, own, retrieval, store, registry, requests, maxForTier } = options
  const { places, clock, log, random, closing, track } = options
  const lines = new Map<string, Line>()
  let tiers = ''

  closing.addEventListener('abort', () => {
    for (const { wake } of lines.values()) wake()
  })

  const toProvider =
    (provider: Provider): Deliver =>
    async ({ holder }, { holders }, upload, signal) => {
      const attempt = await requests.pin(provider, upload, signal)
      const standing = requests.standingAfter(attempt, (holders[holder]?.tries ?? 0) + 1)
      return provider === own ? { ...standing, kind: 'here' } : standing
    }

  const toTier: Deliver = async (line, { cid }, upload, signal) => {
    let lost: unknown
    const read = async function* () {
      try {
        yield* upload.blocks(signal)
      } catch (error) {
        lost = error
        throw error
      }
    }
    try {
      await putBlocks(read, (block, bytes) => retrieval.bring(line.holder, block, bytes, signal), signal)
      line.failures = 0
    } catch (error) {
      signal.throwIfAborted()
      if (lost === undefined) {
        backOff(line, isFailure(error) ? (error.retryAfterMs ?? 0) : 0)
        return 'later'
      }
      log('error', 'upload.replication-failed', { tier: line.holder, cid: nameOf(cid), why: wordsOf(lost) })
    }
    return undefined
  }

  /** Deliveries that ran at once fail at once: that is one outage, and one pause. */
  function backOff(line: Line, retryAfterMs: number): void {
    if (line.pauseMs > 0) return
    const ms = Math.max(retryAfterMs, minBackoffMs * 2 ** Math.min(10, line.failures++)) * (0.8 + 0.4 * random())
    line.pauseMs = Math.min(maxBackoffMs, ms)
    const trimmed = store.trim(line.holder, maxForTier.uploads, maxForTier.bytes).then((count) => {
      if (count > 0) log('warn', 'upload.replication-abandoned', { tier: line.holder, uploads: count })
    })
    void track(trimmed).catch(() => {})
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
      await store.trim(holder, 0, 0)
    }
  }

  async function serve(line: Line): Promise<void> {
    while (!closing.aborted) {
      line.isWoken = false
      const waitMs = await startDue(line).catch((error: unknown) => {
        if (!closing.aborted) log('error', 'upload.queue-failed', { holder: line.holder, error: String(error) })
        line.pauseMs = retryMs
        return 0
      })
      // A delivery that fails while the line is idle sets a pause, which comes next.
      if (line.pauseMs > 0) {
        await clock.sleep(line.pauseMs, closing)
        line.pauseMs = 0
      } else if (!line.isWoken) await idle(line, waitMs)
    }
  }

  const idle = (line: Line, ms: number): Promise<void> =>
    new Promise((resolve) => {
      const cancel = ms < Number.POSITIVE_INFINITY ? clock.after(ms, resolve) : () => {}
      line.wake = () => {
        cancel()
        resolve()
      }
      if (closing.aborted) line.wake()
    })

  /** Resolves with the time until the next upload is due. */
  async function startDue(line: Line): Promise<number> {
    const rows = await store.ledger.due(line.holder, maxRows)
    let isAnyStarted = false
    for (const { cid, holders } of rows) {
      const waitMs = waitOf(holders[line.holder])
      if (waitMs > 0) return waitMs
      // After a failure one upload goes alone, as a test.
      while (line.running.size >= (line.failures > 0 ? 1 : line.maxRunning)) await Promise.race(line.running)
      if (line.pauseMs > 0 || closing.aborted) return 0
      const name = nameOf(cid)
      if (registry.isRequested(name, line.holder) || registry.isExclusive(name)) continue
      start(line, cid)
      isAnyStarted = true
    }
    if (rows.length < maxRows) return Number.POSITIVE_INFINITY
    return isAnyStarted ? 0 : retryMs
  }

  function waitOf(standing: Standing | undefined): number {
    const ms = (standing?.notBefore ?? 0) - clock.now()
    return ms > maxWaitMs ? 0 : ms
  }

  function start(line: Line, cid: CID): void {
    const request = registry.begin(nameOf(cid), line.holder)
    const work = bring(line, cid, request)
      .catch((error: unknown) => {
        // Deleted meanwhile, or the ledger could not be written: it is due as before.
        if (closing.aborted) return
        log('warn', 'upload.delivery-failed', { cid: nameOf(cid), holder: line.holder, why: String(error) })
        line.pauseMs = retryMs
      })
      .finally(() => {
        request.end()
        line.running.delete(work)
        wakeUp(line)
      })
    line.running.add(work)
    void track(work)
  }

  async function bring(line: Line, cid: CID, request: HolderRequest): Promise<void> {
    // Another request may have changed the row since it was read, and none can from here on.
    const entry = await store.ledger.find(cid)
    const standing = entry?.holders[line.holder]
    if (!entry || standing?.state !== 'pending' || waitOf(standing) > 0) return
    const signal = AbortSignal.any([closing, request.signal])
    const after = await line.deliver(line, entry, storedUpload(entry, places), signal)
    if (after === 'later' || (request.isSuperseded && after?.state !== 'pinned')) return
    await store.update(entry.cid, { [line.holder]: after })
  }

  function wakeUp(line: Line): void {
    line.isWoken = true
    line.wake()
  }

  function wakeLine(holder: string, maxRunning: number, deliver: () => Deliver): void {
    const known = lines.get(holder)
    if (known) return wakeUp(known)
    const fresh = { running: new Set<Promise<void>>(), failures: 0, pauseMs: 0, isWoken: false, wake() {} }
    const line: Line = { holder, maxRunning, deliver: deliver(), ...fresh }
    lines.set(holder, line)
    // It ends with the gateway.
    serve(line).catch(() => {})
  }

  return () => {
    if (closing.aborted) return
    void track(forgetGone().catch(() => {}))
    for (const provider of providers) wakeLine(provider.name, maxPins, () => toProvider(provider))
    for (const tier of retrieval.sharedTiers) wakeLine(tier, maxForTierAtOnce, () => toTier)
  }
}
