// Loads the operator's denylists from files and addresses, and reads them again when they change. A list that cannot be
// read at start is an error, unless there is a copy; later, the gateway keeps the list it has.
import { createHash } from 'node:crypto'
import type { Clock } from '../core/clock.ts'
import { cancelled, Failure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { createDenylists, type Denylist, type Denylists } from './denylist.ts'
import { fromFile } from './file-source.ts'
import { objection, type ReadList, readList } from './read-list.ts'
import { type DenylistEntry, type DenylistSource, whyOf } from './source.ts'
import { fromUrl } from './url-source.ts'

export interface LoadedDenylists extends Denylists {
  readonly rules: number
  /** `checkedAt`: when it was last read or found unchanged, since the epoch; 0: not yet, a copy is in force. */
  lists(): readonly { readonly where: string; readonly checkedAt: number }[]
  /** A hash of all lists in their order: equal wherever the lists are. Undefined without lists. */
  readonly revision: string | undefined
  /** Reads every list again now. Rejects where one cannot be read and no copy of it is there; those before it stay. */
  refresh(): Promise<void>
  close(): void
}

/** A list that is not there yet is asked for more often. */
const missingMs = 30_000

/** A list is checked every two seconds; the same error is not logged more often than this. */
const sayAgainMs = 300_000

type LoadOptions = {
  readonly clock: Clock
  readonly log: Log
  readonly userAgent: string
  /** Keeps the last copy of each list that was fetched. */
  readonly folder: string
  /** Called when a list changed: earlier decisions may be wrong now. */
  readonly onChange: () => void
}

export async function loadDenylists(entries: readonly DenylistEntry[], options: LoadOptions): Promise<LoadedDenylists> {
  const { clock, log, onChange } = options
  const closing = new AbortController()
  const lists: Denylist[] = []
  const digests: string[] = []
  const turns: Promise<void>[] = []
  const checkedAt: number[] = []
  let revision: string | undefined

  function take({ where }: DenylistSource, index: number, { list, digest, faults, faultCount }: ReadList): void {
    for (const { line, what } of faults) log('warn', 'denylist.line', { list: where, line, what })
    if (faultCount > faults.length) log('warn', 'denylist.lines', { list: where, faults: faultCount })
    lists[index] = list
    digests[index] = digest
    revision = createHash('sha256').update(digests.join()).digest('hex').slice(0, 8)
    log('info', 'denylist.read', { list: where, rules: list.rules })
    onChange()
  }

  /** One at a time for each list, so that an older text never takes the place of a newer one. */
  function read(source: DenylistSource, index: number, anew = false): Promise<void> {
    const turn = (turns[index] ?? Promise.resolve()).then(() => readNow(source, index, anew))
    turns[index] = turn.then(() => void (checkedAt[index] = clock.now())).catch(() => {})
    return turn
  }

  async function readNow(source: DenylistSource, index: number, anew: boolean): Promise<void> {
    try {
      const found = await source.read(closing.signal, anew)
      if (!found) return
      const given = await readList(source.name, found.text)
      if (given.digest === digests[index]) return await found.taken()
      // A new list without rules is compared with the last copy. On a reload the operator may have emptied it on
      // purpose.
      const before =
        (anew ? undefined : lists[index]) ?? (given.list.rules === 0 ? (await copyOf(source))?.list : undefined)
      const against = objection(given, { rulesBefore: before?.rules ?? 0, isEmptyOdd: source.isEmptyOdd })
      if (against !== undefined) throw new Error(against)
      take(source, index, given)
      await found.taken()
    } catch (cause) {
      closing.signal.throwIfAborted()
      throw new Failure('broken', `the denylist ${source.where} cannot be read: ${whyOf(cause)}`, {
        source: 'ours',
        cause,
      })
    }
  }

  /** At start an older list is better than none; without one the gateway does not start. */
  async function begin(source: DenylistSource, index: number): Promise<void> {
    try {
      await read(source, index)
    } catch (error) {
      closing.signal.throwIfAborted()
      const copy = await copyOf(source)
      const instead = copy ? 'the copy of last time' : 'nothing: it is not required'
      if (!copy && isRequired(index)) throw error
      log('error', 'denylist.read-failed', { list: source.where, error: whyOf(error), instead })
      if (copy) take(source, index, copy)
      else lists[index] = (await readList(source.name, '')).list
    }
  }

  /** For a reload: reports what would have stopped a start, and keeps the list it has. */
  async function again(source: DenylistSource, index: number): Promise<void> {
    try {
      await read(source, index, true)
    } catch (error) {
      closing.signal.throwIfAborted()
      if (isRequired(index) && !(await copyOf(source))) throw error
      log('error', 'denylist.read-failed', { list: source.where, error: whyOf(error), instead: 'what was read before' })
    }
  }

  async function watch(source: DenylistSource, index: number): Promise<void> {
    let said: { readonly what: string; readonly at: number } | undefined
    for (;;) {
      const isThere = digests[index] !== undefined
      await clock.sleep(isThere ? source.everyMs : Math.min(missingMs, source.everyMs), closing.signal)
      try {
        await read(source, index)
        said = undefined
      } catch (error) {
        closing.signal.throwIfAborted()
        const what = whyOf(error)
        if (what === said?.what && clock.monotonic() - said.at < sayAgainMs) continue
        said = { what, at: clock.monotonic() }
        log('error', 'denylist.read-failed', { list: source.where, error: what })
      }
    }
  }

  const isRequired = (index: number): boolean => requires(entries[index])
  const all = entries.map((entry) => sourceOf(entry, options))
  await Promise.all(all.map(begin))
  for (const [index, source] of all.entries()) watch(source, index).catch(() => {}) // ends when it is closed
  return {
    ...createDenylists(() => lists),
    get rules() {
      return lists.reduce((sum, { rules }) => sum + rules, 0)
    },
    get revision() {
      return revision
    },
    lists: () => all.map(({ where }, index) => ({ where, checkedAt: checkedAt[index] ?? 0 })),
    refresh: async () => void (await Promise.all(all.map(again))),
    close: () => closing.abort(cancelled('the gateway is closing')),
  }
}

const requires = (entry: DenylistEntry | undefined): boolean => typeof entry !== 'object' || entry.required

function sourceOf(entry: DenylistEntry, { userAgent, folder, log }: LoadOptions): DenylistSource {
  const { url, copy } = typeof entry === 'string' ? { url: entry, copy: undefined } : entry
  return /^https?:\/\//.test(url) ? fromUrl(url, { userAgent, folder, log, shipped: copy }) : fromFile(url)
}

async function copyOf(source: DenylistSource): Promise<ReadList | undefined> {
  const text = await source.lastCopy()
  const copy = text === undefined ? undefined : await readList(source.name, text).catch(() => undefined)
  return copy && objection(copy, { rulesBefore: 0, isEmptyOdd: source.isEmptyOdd }) === undefined ? copy : undefined
}
