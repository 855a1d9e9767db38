// What is on its way to providers: of this gateway, of those before or after it over the same folder, and of none, where the
// journal has what a process or a gateway left and the newest has not taken it up yet.
import type { CID } from 'multiformats/cid'
import { Failure } from '../../core/failure.ts'
import type { Claims } from '../claims.ts'
import type { OnTheirWay } from '../generations.ts'
import { type Journal, type JournalEntry, nameOf } from '../spool/journal.ts'
import type { Spools } from '../spool/spool.ts'

export interface UploadsOnTheirWay {
  /** The accepted ones that some gateway works on. */
  open(): readonly JournalEntry[]
  openOf(cid: CID): JournalEntry | undefined
  /** The same, and one that no gateway works on now. */
  find(cid: CID): Promise<JournalEntry | undefined>
  /** Ends what goes on behind it, in all of them. False while a client waits for its answer. */
  drop(cid: CID): Promise<boolean>
}

export type OnTheirWayOptions = {
  readonly all: () => readonly OnTheirWay[]
  /** The journal may have entries that no gateway works on. */
  readonly mayBeLeft: () => boolean
  readonly journal: Pick<Journal, 'openOf' | 'remove'>
  readonly spools: Pick<Spools, 'drop'>
  readonly claims: Pick<Claims, 'tryToBegin'>
}

/** An entry changes hands between two looks at most a few times. */
const mostLooks = 20

export function createOnTheirWay(options: OnTheirWayOptions): UploadsOnTheirWay {
  const { all, mayBeLeft, journal, spools, claims } = options

  const open = () => all().flatMap((one) => one.open().filter(({ accepted }) => accepted))
  const openOf = (cid: CID) => open().find((entry) => entry.cid === nameOf(cid))

  /** True if every one is dropped that was seen; an entry that a gateway took up meanwhile is dropped by that one. */
  async function dropLeft(cid: CID): Promise<boolean> {
    const left = await journal.openOf(cid)
    // What is begun here is never ended: no gateway that loaded it before takes it up any more.
    const idle = left.filter(({ id }) => claims.tryToBegin(id))
    for (const entry of idle) {
      await journal.remove(entry)
      await spools.drop(entry.id)
    }
    return idle.length === left.length
  }

  return {
    open,
    openOf,
    async find(cid) {
      const found = openOf(cid)
      if (found || !mayBeLeft()) return found
      return (await journal.openOf(cid)).find(({ accepted }) => accepted)
    },
    async drop(cid) {
      for (let looks = 0; looks < mostLooks; looks++) {
        const dropped = await Promise.all(all().map((one) => one.drop(cid)))
        if (dropped.includes(false)) return false
        if (!mayBeLeft() || (await dropLeft(cid))) return true
      }
      throw new Failure('overloaded', `${cid} is being taken over after a reload; try again soon`, {
        source: 'ours',
        retryAfterMs: 1000,
      })
    },
  }
}
