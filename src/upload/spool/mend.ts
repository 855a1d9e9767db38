// Takes up uploads whose journal entries are damaged or gone: by an older line, by the copy beside the spool, or by the blocks in it.
// None is forgotten, and the operator is told of each.
import { existsSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { LocalStore, Profile } from '../../../backends/pinning/contract.ts'
import { blockKey } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Claims } from '../claims.ts'
import { type Became, createDamagedNotes, type DamagedNotes } from './damaged.ts'
import { cidOf, type Damaged, type Journal, type JournalEntry } from './journal.ts'
import { type Salvaged, salvage } from './salvage.ts'
import type { Spools } from './spool.ts'

export type MendingOptions = {
  readonly data: string
  readonly journal: Pick<Journal, 'write' | 'remove'>
  readonly spools: Spools
  readonly stores: readonly LocalStore[]
  readonly claims: Pick<Claims, 'tryToBegin' | 'begin' | 'end'>
  /** For an upload that does not tell its own. */
  readonly profile: Profile
  /** Shared tiers may lack an upload whose debts are not known any more. */
  readonly retrieval: { readonly sharedTiers: readonly string[] }
  readonly clock: Clock
  readonly log: Log
}

export interface Mending extends Pick<DamagedNotes, 'words' | 'look'> {
  /**
   * The entries that can be taken up now, each of them whole on the disk; the blocks of the others can be read. `later` reads those
   * blocks through, which takes its time, and resolves with the entries that they make.
   */
  begin(damaged: readonly Damaged[], closing: AbortSignal): Promise<Mended>
}

export type Mended = {
  readonly entries: readonly JournalEntry[]
  readonly later: (() => Promise<readonly JournalEntry[]>)[]
}

export function createMending(options: MendingOptions): Mending {
  const { data, journal, spools, stores, claims, profile, retrieval, clock, log } = options
  const { note, look, words } = createDamagedNotes({ data, clock, log })

  async function mended(damaged: Damaged, became: Became, entry: JournalEntry): Promise<JournalEntry> {
    await note(damaged, became, [cidOf(entry).toString()])
    const isHere = await spools.isHere(entry.id)
    await journal.write(entry, entry.accepted && isHere ? 'copied' : undefined)
    return entry
  }

  /** Whether anything here has such a block: a damaged CID may be a valid one, of nothing. */
  async function hasRoot(entry: JournalEntry): Promise<boolean> {
    const key = blockKey(cidOf(entry))
    if (existsSync(join(spools.folderOf(entry.id), key))) return true
    for (const store of stores) if (await store.has(cidOf(entry)).catch(() => false)) return true
    return false
  }

  async function rebuild(damaged: Damaged, closing: AbortSignal): Promise<JournalEntry[]> {
    const { id, text, unsure } = damaged
    const folder = spools.folderOf(id)
    const [own, ...others] = await salvage({ folder, text, profile, stores, signal: closing })
    if (!own) {
      if (unsure && (await hasRoot(unsure))) return [await mended(damaged, 'read', unsure)]
      await note(damaged, 'incomplete', [])
      return []
    }
    const at = await whenOf(folder, unsure)
    const { sharedTiers } = retrieval
    const entryOf = (one: Salvaged, id: string): JournalEntry => ({
      ...{ id, ...one, at, accepted: true, providers: {} },
      ...(sharedTiers.length > 0 && { owed: [...sharedTiers] }),
    })
    const entries: JournalEntry[] = []
    // The spool goes when its own upload is held: the others get spools of their own before.
    for (const one of others) entries.push(entryOf(one, await copyOf(id, one, closing)))
    const cids = [own, ...others].map((one) => cidOf(one).toString())
    await note(damaged, 'rebuilt', cids)
    for (const entry of entries) await journal.write(entry, 'copied')
    const entry = entryOf(own, id)
    await journal.write(entry, 'copied')
    return [entry, ...entries]
  }

  const inItsTurn = (damaged: Damaged, closing: AbortSignal) => async (): Promise<readonly JournalEntry[]> => {
    const { id } = damaged
    try {
      return await rebuild(damaged, closing)
    } catch (error) {
      if (closing.aborted) return []
      log('error', 'journal.mend', { id, error: String(error) })
      await note(damaged, 'unfinished', [])
      return []
    } finally {
      claims.end(id)
    }
  }

  /** Resolves with the id of the spool that has the blocks of this one now. */
  async function copyOf(id: string, one: Salvaged, closing: AbortSignal): Promise<string> {
    const cid = cidOf(one)
    const spool = await spools.begin()
    try {
      for await (const block of spools.open({ ...one, id, cid }, stores).blocks(closing))
        await spool.put(block.cid, block.bytes)
      await spool.finish(cid, one.profile, one.bytes)
      await spools.persist(spool.id)
      return spool.id
    } catch (error) {
      await spools.drop(spool.id)
      throw error
    }
  }

  /** True where its blocks have to be read through first. */
  async function atOnce(damaged: Damaged, entries: JournalEntry[]): Promise<boolean> {
    const { id, entry, unsure } = damaged
    if (entry) entries.push(await mended(damaged, entry.by === 'copy' ? 'copied' : 'read', entry.entry))
    else if (await spools.isHere(id)) {
      await spools.offer(id)
      return true
    } else if (unsure && (await hasRoot(unsure))) entries.push(await mended(damaged, 'read', unsure))
    else {
      await note(damaged, 'nothing', [])
      await journal.remove(damaged)
    }
    return false
  }

  return {
    async begin(damaged, closing) {
      await look()
      const entries: JournalEntry[] = []
      const later: Mended['later'] = []
      const rest = [...damaged]
      const work = async () => {
        for (let one = rest.pop(); one; one = rest.pop()) {
          const { id, entry } = one
          // It may be deleted since it was loaded.
          if (!claims.tryToBegin(id)) continue
          const isLater = await atOnce(one, entries).catch((error: unknown) => {
            log('error', 'journal.mend', { id, error: String(error) })
            // A full disk keeps no upload from being read.
            if (entry) entries.push(entry.entry)
            return false
          })
          if (isLater) later.push(inItsTurn(one, closing))
          else claims.end(id)
        }
      }
      await Promise.all(Array.from({ length: mendsAtOnce }, work))
      return { entries, later }
    },
    words,
    look,
  }
}

const mendsAtOnce = 32

async function whenOf(folder: string, unsure: JournalEntry | undefined): Promise<string> {
  const at = Date.parse(unsure?.at ?? '')
  return new Date(Number.isNaN(at) ? (await stat(folder)).mtimeMs : at).toISOString()
}
