// Decides which delivery an upload joins: a new one, or the running one of the same file.
import type { LocalStore } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Claims } from '../claims.ts'
import { diskFailure } from '../failures.ts'
import { cidOf, isHeld, type Journal, type JournalEntry, nameOf, recordOf } from '../spool/journal.ts'
import type { Spools } from '../spool/spool.ts'
import type { SpooledUpload } from './behind.ts'
import { OtherFailed } from './confirming.ts'
import type { Deliveries } from './deliveries.ts'
import type { Delivery } from './delivery.ts'
import type { Quorum } from './quorum.ts'

export type JoiningOptions = {
  readonly deliveries: Deliveries
  readonly quorum: Quorum
  readonly journal: Journal
  readonly spools: Spools
  readonly stores: readonly LocalStore[]
  readonly claims: Claims
  readonly clock: Clock
  readonly log: Log
  readonly closing: AbortSignal
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

/** The other uploads of the same request. */
type Companions = { readonly wait: () => Promise<unknown>; readonly isAlone: boolean }
type Joined = { enough: Promise<void>; confirmed: Promise<void> }

export interface Joining {
  /** Joins an upload of a request with others. `enough` resolves when enough providers hold it. */
  join(spooled: SpooledUpload, others: Companions): Joined
  /** Resumes uploads that another process, or the gateway before this one, left. Resolves when accepted ones can be read. */
  takeUpAll(entries: readonly JournalEntry[]): Promise<void>
}

export function createJoining(options: JoiningOptions): Joining {
  const { deliveries, quorum, journal, spools, stores, claims, clock, log, closing, track } = options
  const { all, begin, behind } = deliveries
  /** With blocks that an earlier process left, which may be damaged. */
  const takenUp = new WeakSet<Delivery>()

  function join(spooled: SpooledUpload, others: Companions): Joined {
    const running = all.get(nameOf(spooled.upload.cid))
    if (running?.isAwaited) return inTime(withRunning(running, spooled, others))
    // A delivery that is over has reached every provider; only its record is still being written.
    if (!running || running.isOver) return anew(spooled, others)
    if (!quorum.isEnough(running.entry)) return inTime(again(running, spooled, others))
    return inTime(track(withMended(options, running, spooled, () => join(spooled, others))))
  }

  function anew({ upload, id }: SpooledUpload, others: Companions): Joined {
    const { cid, profile, bytes, carBytes } = upload
    const at = new Date(clock.now()).toISOString()
    const entry = { id, cid: nameOf(cid), profile, bytes, carBytes, at, accepted: false, providers: {} }
    return begin(upload, entry, { others: others.wait })
  }

  async function withRunning(running: Delivery, spooled: SpooledUpload, others: Companions): Promise<Joined> {
    try {
      await running.confirmed
    } catch (error) {
      // It failed because of another upload of its request, or with what an earlier process left of it, which is no reason for
      // this one to fail: it begins a new delivery with its own bytes.
      const isOfOthers = error instanceof OtherFailed || takenUp.has(running)
      if (isOfOthers && mayJoinAgain(running, all.get(running.entry.cid), others)) return join(spooled, others)
      await spools.drop(spooled.id)
      throw error
    }
    await spools.drop(spooled.id)
    return { enough: Promise.resolve(), confirmed: Promise.resolve() }
  }

  /**
   * A client sends a file again that was accepted before and that too few of today's providers hold. The client waits for
   * them, and its bytes replace those waiting here, which may be damaged.
   */
  async function again(old: Delivery, spooled: SpooledUpload, others: Companions): Promise<Joined> {
    const { upload, id } = spooled
    const entry = { ...old.entry, id }
    claims.begin(id)
    try {
      await spools.persist(id)
      await journal.write(entry, 'copied')
    } catch (error) {
      claims.end(id)
      await spools.drop(id)
      throw diskFailure(error, 'write the journal')
    }
    if (all.get(entry.cid) !== old || old.state !== 'accepted') {
      await journal.remove(entry)
      claims.end(id)
      return join(spooled, others)
    }
    const delivery = begin(upload, { ...old.entry, id }, { others: others.wait, isAsked: true })
    behind.replaced(old)
    return delivery
  }

  const said =
    (event: string, { cid }: JournalEntry) =>
    (error: unknown) => {
      if (!closing.aborted) log('error', event, { cid, error: String(error) })
    }

  let copying: Promise<unknown> = Promise.resolve()

  /** Of an earlier version, one after another: their clients were told long ago. */
  function copyLater(delivery: Delivery): void {
    const copy = async () => {
      if (!closing.aborted && !delivery.isOver && (await spools.isHere(delivery.entry.id)))
        await delivery.write('copied')
    }
    copying = track(copying.then(copy)).catch(said('journal.write', delivery.entry))
  }

  function takeUp(entry: JournalEntry): Promise<void> {
    const goesOn = async () => {
      // It may have been deleted since it was loaded.
      if (!claims.tryToBegin(entry.id)) return
      const delivery = begin(spools.open(recordOf(entry), stores), entry)
      takenUp.add(delivery)
      if (entry.accepted && !journal.isCopied(entry.id)) copyLater(delivery)
      await delivery.confirmed.catch(() => {})
    }
    const running = all.get(entry.cid)
    if (!running) return goesOn()
    // A newer upload of the same file is under way; once accepted, it is brought to every provider.
    const forget = () => journal.remove(entry).then(() => spools.drop(entry.id))
    return track(running.confirmed.then(forget, goesOn)).catch(said('journal.take-up', entry))
  }

  async function takeUpAll(entries: readonly JournalEntry[]): Promise<void> {
    const over = new Map<JournalEntry, 'lost' | 'held'>()
    for (const entry of entries) {
      const how = await isOver(entry, options)
      if (how) over.set(entry, how)
    }
    const letGo = async (entry: JournalEntry) => {
      if (!claims.tryToBegin(entry.id)) return
      const work = over.get(entry) === 'held' ? 'finish' : 'remove'
      await track(journal[work](entry)).catch(said(`journal.${work}`, entry))
      claims.end(entry.id)
    }
    const takenUp = entries.map((entry) => {
      return { isAccepted: entry.accepted, done: over.has(entry) ? letGo(entry) : takeUp(entry) }
    })
    // Readers wait only for accepted uploads: the clients of the others got no 200.
    await Promise.all(takenUp.filter(({ isAccepted }) => isAccepted).map(({ done }) => done))
  }

  return { join, takeUpAll }
}

/** Under a claim: deleted meanwhile, a provider would get it again behind the deletion, and no entry would tell of it. */
async function withMended(
  { deliveries: { all, behind }, quorum, claims }: Pick<JoiningOptions, 'deliveries' | 'quorum' | 'claims'>,
  running: Delivery,
  spooled: SpooledUpload,
  joinAnew: () => Joined,
): Promise<Joined> {
  const { cid } = running.entry
  const locals = quorum.holders(running.entry).filter(({ traits }) => traits.local)
  const claim = await claims.claim(cid, async () => locals.map(({ name }) => name))
  try {
    if (all.get(cid) !== running || running.isOver || !quorum.isEnough(running.entry)) return joinAnew()
    claim.keep()
    await behind.mend(running, spooled)
    return { enough: Promise.resolve(), confirmed: Promise.resolve() }
  } finally {
    await claim.leave()
  }
}

/**
 * It waits for a third delivery only if none waits for it, so no two deadlock. One that failed and is still there, as all are while
 * the gateway closes, would be waited for again without end.
 */
function mayJoinAgain(failed: Delivery, now: Delivery | undefined, { isAlone }: Companions): boolean {
  const isGone = now !== failed || !failed.isAwaited
  return isGone && (isAlone || now === undefined)
}

const inTime = (work: Promise<Joined>): Joined => ({
  enough: work.then((one) => one.enough),
  confirmed: work.then((one) => one.confirmed),
})

/**
 * Whether an entry ends whose blocks are not on this machine, since nothing waits for them: a small upload that was in memory
 * when the last process died, or one that every provider holds already.
 */
async function isOver(
  entry: JournalEntry,
  { spools, stores }: Pick<JoiningOptions, 'spools' | 'stores'>,
): Promise<'lost' | 'held' | false> {
  const isWanted = Object.values(entry.providers).some(({ state }) => state === 'wanted')
  if (entry.accepted && (isWanted || entry.owed?.length || !isHeld(entry))) return false
  if (await spools.isHere(entry.id)) return false
  const found = await Promise.all(stores.map((store) => store.has(cidOf(entry)).catch(() => true)))
  if (found.includes(true)) return false
  return entry.accepted ? 'held' : 'lost'
}
