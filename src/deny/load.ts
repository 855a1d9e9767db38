// The denylists in force: those of the operator, loaded from files and URLs and reloaded when they
// change, behind the list of takedowns, which the gateway writes. A list that cannot be read at start
// is an error unless there is a copy; later, the gateway keeps the current list.
import { createHash } from 'node:crypto'
import { appendFile, readFile, rename, stat, truncate, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { CID } from 'multiformats/cid'
import { request } from 'undici'
import type { Clock } from '../core/clock.ts'
import { codeOf, isDiskFull, makeFolder, makeFolders, orIfGone, syncFolder } from '../core/disk/files.ts'
import { cancelled, Failure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import {
  createDenylist,
  createDenylists,
  type Denial,
  type Denylist,
  type ListFault,
  objection,
  type ReadList,
  readList,
} from './denylist.ts'

export interface LoadedDenylists {
  /** The decision about a CID and the path below it. */
  path(cid: CID, rest: readonly string[]): Denial | undefined
  /** Throws a Failure `denied` for a CID and path that this gateway must not store or serve. */
  visit(cid: CID, rest: readonly string[]): void
  /** Checks a path below a name in the same way. */
  visitName(name: string, rest: readonly string[]): void
  readonly rules: number
  /**
   * `checkedAt`: milliseconds since the epoch of the last successful check; 0 while only a copy is
   * in force.
   */
  lists(): readonly { readonly where: string; readonly checkedAt: number }[]
  /** A hash of all lists in order, independent of their sources. Undefined without rules. */
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
  /** Apply before all lists. */
  readonly takedowns?: Takedowns | undefined
}

export async function loadDenylists(entries: readonly DenylistEntry[], options: LoadOptions): Promise<LoadedDenylists> {
  const { clock, log, onChange, takedowns } = options
  const closing = new AbortController()
  const lists: Denylist[] = []
  const digests: string[] = []
  const queues: Promise<void>[] = []
  const checkedAt: number[] = []

  function apply({ where }: DenylistSource, index: number, { list, digest, faults, faultCount }: ReadList): void {
    for (const { line, what } of faults) log('warn', 'denylist.line', { list: where, line, what })
    if (faultCount > faults.length) log('warn', 'denylist.lines', { list: where, faults: faultCount })
    lists[index] = list
    digests[index] = digest
    log('info', 'denylist.read', { list: where, rules: list.rules })
    onChange()
  }

  /** Serialized per list, so that an older text never replaces a newer one. */
  function read(source: DenylistSource, index: number, anew = false): Promise<void> {
    const queued = (queues[index] ?? Promise.resolve()).then(() => readNow(source, index, anew))
    queues[index] = queued.then(() => void (checkedAt[index] = clock.now())).catch(() => {})
    return queued
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
      apply(source, index, given)
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
      if (copy) apply(source, index, copy)
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
  await Promise.all([takedowns?.refresh(), ...all.map(begin)])
  for (const [index, source] of all.entries()) watch(source, index).catch(() => {}) // ends when it is closed
  const decided = createDenylists(() => lists)
  const path = (cid: CID, rest: readonly string[]) => takedowns?.path(cid, rest) ?? decided.path(cid, rest)
  return {
    path,
    visit: (cid, rest) => refuse(path(cid, rest)),
    visitName: (name, rest) => refuse(decided.belowName(name, rest)),
    get rules() {
      return lists.reduce((sum, { rules }) => sum + rules, takedowns?.rules ?? 0)
    },
    get revision() {
      const texts = [...digests, ...(takedowns && takedowns.rules > 0 ? [takedowns.digest] : [])]
      return texts.length === 0 ? undefined : createHash('sha256').update(texts.join()).digest('hex').slice(0, 8)
    },
    lists: () => all.map(({ where }, index) => ({ where, checkedAt: checkedAt[index] ?? 0 })),
    refresh: async () => void (await Promise.all([takedowns?.refresh(), ...all.map(again)])),
    close: () => closing.abort(cancelled('the gateway is closing')),
  }
}

function refuse(denial: Denial | undefined): void {
  if (!denial) return
  const { list, legal, reason } = denial
  const why = reason === undefined ? '' : `: ${reason}`
  throw new Failure('denied', `the list ${list} of this gateway's operator denies it${why}`, {
    source: 'ours',
    facts: { legal },
  })
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

type Hints = { readonly legal: boolean; readonly reason: string | undefined }
type Rule = Hints & { readonly cid: CID; readonly line: string }

/** The list of takedowns, which the gateway writes. */
export interface Takedowns {
  readonly path: ReturnType<typeof createDenylists>['path']
  readonly rules: number
  /** The hash of all current rules. */
  readonly digest: string
  /** Describes invalid lines for the operator; undefined if there are none. */
  readonly damage: string | undefined
  /**
   * Reloads the file, which the operator may have edited. Rejects if it exists and cannot be read.
   */
  refresh(): Promise<void>
  /**
   * Adds a rule, unless it exists. It applies at once, even if the disk fails; it is durable when
   * this resolves. Rejects with a Failure `disk-full` or `disk` if it is only in memory.
   */
  takeDown(cid: CID, hints: Hints): Promise<void>
  /** Adds a rule in memory only: another process of this gateway writes it. */
  hold(cid: CID, hints: Hints): void
}

/** Empty if the folder is missing too, which is a fault of `data`, reported elsewhere. */
const textOf = (file: string): Promise<string> => orIfGone(readFile(file, 'utf8'), '')

function unwritten(cause: unknown): Failure {
  const held = 'it is denied, but in memory only, until this gateway stops'
  const context = { source: 'ours', cause } as const
  if (isDiskFull(cause))
    return new Failure(
      'disk-full',
      `disk full: ${held}; free space on the disk of the data folder, then repeat it`,
      context,
    )
  const why = `the list of takedowns in the data folder cannot be written (${codeOf(cause) ?? (cause instanceof Error ? cause.message : 'an unexpected error')})`
  return new Failure('disk-error', `${why}: ${held}; check that disk, then repeat it`, context)
}

/** Shown to every client, so it names no CID and no local path. */
function damageOf(lines: number, first: ListFault): string {
  const what = lines === 1 ? '1 invalid line' : `${lines} invalid lines`
  return `${what} in denylists/takedowns.deny of the data folder: what line ${first.line} denied is served; the log has the reason. Deny it again, remove the line, and reload`
}

function ruleOf(cid: CID, { legal, reason }: Hints): Rule {
  const hints = [...(legal ? ['status=451'] : []), ...(reason === undefined ? [] : [`reason=${reason}`])]
  return { cid, legal, reason, line: [`/ipfs/${cid}/*`, ...hints].join(' ') }
}

const head = 'version: 1\nname: takedowns\n---\n'

/** Rejects if the file exists and cannot be read. */
export async function openTakedowns({
  file,
  onChange,
  log,
}: {
  readonly file: string
  readonly onChange: () => void
  readonly log: Log
}): Promise<Takedowns> {
  /** The rules of the file, and after them those that are not yet in it. */
  let own = createDenylist('takedowns')
  let rulesInFile = 0
  let waiting: readonly Rule[] = []
  let digest = ''
  let damage: string | undefined
  let last: Promise<unknown> = Promise.resolve()
  // Without takedowns a check is free.
  const all = createDenylists(() => (own.rules > 0 ? [own] : []))

  const isIn = ({ cid, legal, reason }: Rule): boolean => {
    const denial = all.path(cid, [])
    return denial !== undefined && denial.legal === legal && denial.reason === reason
  }

  async function read(): Promise<void> {
    const text = await textOf(file)
    const given = await readList('takedowns', text)
    if (given.digest === digest) return
    // The operator may remove lines. A text with neither a rule nor a header is no longer a list,
    // and lifts no takedown.
    const why = rulesInFile > 0 ? objection(given, { rulesBefore: 0, isEmptyOdd: true }) : undefined
    if (why !== undefined)
      throw new Error(
        `${file} is no longer the list of takedowns: ${why}; restore it, or write only its header to lift them all`,
      )
    const [first] = given.faults
    // A truncated write was not acknowledged, but a line damaged on disk was.
    if (first) log('error', 'takedowns.damaged', { file, lines: given.faultCount, line: first.line, why: first.what })
    // An empty one has lost its header, and with it perhaps takedowns.
    const isEmptied = text === '' && (await orIfGone(stat(file), undefined)) !== undefined
    if (isEmptied) log('error', 'takedowns.damaged', { file, lines: 0, line: 1, why: 'the file is empty' })
    damage = isEmptied
      ? 'denylists/takedowns.deny of the data folder is empty: restore it, or write only its header'
      : first && damageOf(given.faultCount, first)
    digest = given.digest
    own = given.list
    rulesInFile = own.rules
    waiting = waiting.filter((rule) => !isIn(rule))
    for (const { line } of waiting) own.add(`${line}\n`)
    onChange()
  }

  async function append(rules: readonly Rule[]): Promise<void> {
    await makeFolder(dirname(file))
    const before = await textOf(file)
    const size = (await orIfGone(stat(file), undefined))?.size ?? 0
    // A full disk may have truncated the last line.
    const start = before === '' ? head : before.endsWith('\n') ? '' : '\n'
    try {
      await appendFile(file, `${start}${rules.map(({ line }) => `${line}\n`).join('')}`, { flush: true })
    } catch (error) {
      await truncate(file, size).catch(() => {})
      throw error
    }
    if (before === '') await syncFolder(dirname(file))
  }

  /** Writes waiting rules. */
  async function write(): Promise<void> {
    const some = waiting
    if (some.length === 0) return
    await append(some)
    waiting = waiting.filter((rule) => !some.includes(rule))
    await read()
  }

  function hold(rule: Rule): void {
    if (isIn(rule)) return
    waiting = [...waiting.filter(({ cid }) => !cid.equals(rule.cid)), rule]
    own.add(`${rule.line}\n`)
    onChange()
  }

  /** Serialized, so that an older text never replaces a newer one. */
  function serialized(work: () => Promise<void>): Promise<void> {
    const queued = last.then(work)
    last = queued.catch(() => {})
    return queued
  }

  await read()
  return {
    // A rule for a CID also covers everything below it.
    path: (cid, segments) => all.belowCid(cid, segments),
    get rules() {
      return own.rules
    },
    get damage() {
      return damage
    },
    get digest() {
      return [digest, ...waiting.map(({ line }) => line)].join('\n')
    },
    refresh: () =>
      serialized(async () => {
        await read()
        // Retries failed writes; the rules apply in memory in any case.
        await write().catch(() => {})
      }),
    hold: (cid, hints) => hold(ruleOf(cid, hints)),
    takeDown(cid, hints) {
      const rule = ruleOf(cid, hints)
      hold(rule)
      return serialized(async () => {
        try {
          // The operator may have edited it, and removed this rule.
          await read()
          hold(rule)
          await write()
        } catch (error) {
          throw unwritten(error)
        }
      })
    },
  }
}

/** A file or URL in the configuration. */
export type DenylistEntry =
  | string
  | {
      readonly url: string
      /** False lets the gateway start without the list while it is unavailable. */
      readonly required: boolean
      /** A file with an earlier text of the list, used at start if the URL fails. */
      readonly copy?: string | undefined
    }

type ListText = {
  readonly text: string
  /** Called when the text was accepted as a list. */
  taken(): Promise<void>
}

type DenylistSource = {
  /** The name shown to clients. */
  readonly name: string
  /** The location shown to the operator, without query or password. */
  readonly where: string
  readonly everyMs: number
  /** True if a text with neither a rule nor a header is not accepted as a list. */
  readonly isEmptyOdd: boolean
  /**
   * Returns the text, or undefined if it is unchanged. `anew`: also returns one that was rejected
   * before.
   */
  read(signal: AbortSignal, anew?: boolean): Promise<ListText | undefined>
  /** The last text that an earlier process accepted. */
  lastCopy(): Promise<string | undefined>
}

const maxListBytes = 512 * 1024 * 1024

/** The first line of an error's message; an AggregateError has only a code. */
function whyOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.name === 'TimeoutError') return 'it timed out'
  const { code } = error as NodeJS.ErrnoException
  return error.message.split('\n', 1)[0] || code || error.name
}

const fileEveryMs = 2_000

function fromFile(path: string): DenylistSource {
  let seen = ''
  return {
    name: basename(path),
    where: path,
    everyMs: fileEveryMs,
    isEmptyOdd: false,
    async read(_signal, anew = false) {
      const { size, mtimeMs } = await stat(path)
      const state = `${size} ${mtimeMs}`
      if (state === seen && !anew) return undefined
      if (size > maxListBytes) throw new Error(`it is larger than ${maxListBytes} bytes`)
      const text = await readFile(path, 'utf8')
      // Remember the state even of a rejected list, so that it is parsed again only after it
      // changes or on demand.
      seen = state
      return { text, async taken() {} }
    },
    lastCopy: async () => undefined,
  }
}

const urlEveryMs = 300_000
const fetchMs = 30_000

type Fetching = {
  readonly userAgent: string
  readonly folder: string
  readonly log: Log
  /** A file that the operator provides for a first start while the URL is down. */
  readonly shipped: string | undefined
}

function fromUrl(url: string, { userAgent, folder, log, shipped }: Fetching): DenylistSource {
  const { host, pathname } = new URL(url)
  const where = `${host}${pathname}`
  const copy = join(folder, `${createHash('sha256').update(url).digest('hex').slice(0, 32)}.deny`)
  let etag: string | undefined

  async function keep(text: string): Promise<void> {
    try {
      await makeFolders(folder)
      await writeFile(`${copy}.new`, text)
      await rename(`${copy}.new`, copy)
    } catch (error) {
      log('warn', 'denylist.save-failed', { list: where, error: whyOf(error) })
    }
  }

  return {
    name: host,
    where,
    everyMs: urlEveryMs,
    isEmptyOdd: true,
    async read(signal) {
      const { statusCode, headers, body } = await request(url, {
        headers: {
          'user-agent': userAgent,
          'accept-encoding': 'identity',
          ...(etag !== undefined && { 'if-none-match': etag }),
        },
        signal: AbortSignal.any([signal, AbortSignal.timeout(fetchMs)]),
      })
      if (statusCode !== 200) {
        await body.dump()
        if (statusCode === 304) return undefined
        throw new Error(`status ${statusCode}${statusCode < 400 ? ' (redirects are not followed)' : ''}`)
      }
      if (/^\s*text\/html\b/i.test(String(headers['content-type'] ?? ''))) {
        await body.dump()
        throw new Error('the answer is an HTML page')
      }
      const pieces: Uint8Array[] = []
      let bytes = 0
      for await (const piece of body as AsyncIterable<Uint8Array>) {
        bytes += piece.byteLength
        if (bytes > maxListBytes) throw new Error(`it is larger than ${maxListBytes} bytes`)
        pieces.push(piece)
      }
      const text = Buffer.concat(pieces).toString('utf8')
      return {
        text,
        async taken() {
          etag = headers['etag']?.toString()
          await keep(text)
        },
      }
    },
    lastCopy: () =>
      readFile(copy, 'utf8')
        .catch(() => (shipped === undefined ? undefined : readFile(shipped, 'utf8')))
        .catch(() => undefined),
  }
}
