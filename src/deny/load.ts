// Loads the operator's denylists from files and URLs, and reloads them when they change. A list
// that cannot be read at start is an error unless there is a copy; later, the gateway keeps the
// current list.
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
  /**
   * `checkedAt`: milliseconds since the epoch of the last successful check; 0 while only a copy is
   * in force.
   */
  lists(): readonly { readonly where: string; readonly checkedAt: number }[]
  /** A hash of all lists in order, independent of their sources. Undefined without lists. */
  readonly revision: string | undefined
  /**
   * Reloads every list now. Rejects if one cannot be read and has no copy; the lists before it stay
   * reloaded.
   */
  refresh(): Promise<void>
  close(): void
}

/** A missing list is retried more often. */
const missingMs = 30_000

/**
 * The minimum interval between log lines with the same error, since a list is checked every two
 * seconds.
 */
const sayAgainMs = 300_000

type LoadOptions = {
  readonly clock: Clock
  readonly log: Log
  readonly userAgent: string
  /** The folder for the last copy of each fetched list. */
  readonly folder: string
  /** Called when a list changed: earlier decisions may be outdated. */
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

  /** Serialized per list, so that an older text never replaces a newer one. */
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
      // A new list without rules is compared with the last copy. On a reload the operator may have
      // emptied it on purpose.
      const before =
        (anew ? undefined : lists[index]) ?? (given.list.rules === 0 ? (await copyOf(source))?.list : undefined)
      const against = objection(given, { rulesBefore: before?.rules ?? 0, isEmptyOdd: source.isEmptyOdd })
      if (against !== undefined) throw new Error(against)
      take(source, index, given)
      await found.taken()
    } catch (cause) {
      closing.signal.throwIfAborted()
      throw new Failure('upstream-error', `the denylist ${source.where} cannot be read: ${whyOf(cause)}`, {
        source: 'ours',
        cause,
      })
    }
  }

  /** At start an outdated list is better than none; without any the gateway does not start. */
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

  /** For a reload: logs what would have stopped a start, and keeps the current list. */
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
