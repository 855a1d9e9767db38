// The list of takedowns, which the operator adds by a command. The gateway writes it, and checks it
// before all others. All gateways over a data folder share it, so that a takedown applies at once,
// also in one that a reload is creating.
import { createHash } from 'node:crypto'
import { appendFile, readFile, stat, truncate } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { CID } from 'multiformats/cid'
import { codeOf, isGone, isNoRoom, makeFolder, orIfGone, syncFolder } from '../core/disk/files.ts'
import { Failure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { createDenylist, createDenylists, type Denylist, type ListFault } from './denylist.ts'
import type { LoadedDenylists } from './load.ts'
import { objection, readList } from './read-list.ts'

type Hints = { readonly legal: boolean; readonly reason: string | undefined }
type Rule = Hints & { readonly cid: CID; readonly line: string }

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

export interface DenylistsWithTakedowns extends LoadedDenylists, Pick<Takedowns, 'takeDown' | 'hold'> {
  readonly takedownDamage: Takedowns['damage']
}

/** Empty if the folder is missing too, which is a fault of `data`, reported elsewhere. */
const textOf = (file: string): Promise<string> =>
  readFile(file, 'utf8').catch((error: unknown) => {
    if (isGone(error) || codeOf(error) === 'ENOTDIR') return ''
    throw error
  })

function unwritten(cause: unknown): Failure {
  const held = 'it is denied from now on, but in memory alone, until this gateway ends'
  const context = { source: 'ours', cause } as const
  if (isNoRoom(cause))
    return new Failure(
      'disk-full',
      `disk full: ${held}; free space on the disk of the data folder, then repeat it`,
      context,
    )
  const why = `the list of takedowns in the data folder cannot be written (${codeOf(cause) ?? (cause instanceof Error ? cause.message : 'an unexpected error')})`
  return new Failure('disk-error', `${why}: ${held}; look at that disk, then repeat it`, context)
}

/** Shown to every client, so it names no CID and no local path. */
function damageOf(lines: number, first: ListFault): string {
  const what = lines === 1 ? '1 line makes' : `${lines} lines make`
  return `${what} no sense in denylists/takedowns.deny of the data folder, and what was denied there is served: line ${first.line}; the log says why. Deny it again, take out the line, and reload`
}

function ruleOf(cid: CID, { legal, reason }: Hints): Rule {
  const hints = [...(legal ? ['status=451'] : []), ...(reason === undefined ? [] : [`reason=${reason}`])]
  return { cid, legal, reason, line: [`/ipfs/${cid}/*`, ...hints].join(' ') }
}

const withRules = (lists: readonly Denylist[]) => lists.filter(({ rules }) => rules > 0)

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
  let own = createDenylist('takedowns')
  let digest = ''
  let damage: string | undefined
  /** Rules that are not yet in the file, and a list of them. */
  let waiting: readonly Rule[] = []
  let early = createDenylist('takedowns')
  let last: Promise<unknown> = Promise.resolve()

  const written = createDenylists(() => withRules([own]))
  // Skips empty lists, so that without takedowns a check is free. The last takedown gives the
  // reason.
  const all = createDenylists(() => withRules([early, own]))

  const isWritten = ({ cid, legal, reason }: Rule): boolean => {
    const denial = written.path(cid, [])
    return denial !== undefined && denial.legal === legal && denial.reason === reason
  }

  function wait(rules: readonly Rule[]): void {
    waiting = rules
    early = createDenylist('takedowns')
    for (const { line } of rules) early.add(`${line}\n`)
  }

  async function read(): Promise<void> {
    const given = await readList('takedowns', await textOf(file))
    if (given.digest === digest) return
    // The operator may remove lines. A text with neither a rule nor a header is no longer a list,
    // and lifts no takedown.
    const why = own.rules > 0 ? objection(given, { rulesBefore: 0, isEmptyOdd: true }) : undefined
    if (why !== undefined)
      throw new Error(
        `${file} is not the list of takedowns any more: ${why}; put it back, or write its header alone to lift them all`,
      )
    const [first] = given.faults
    // A truncated write was not acknowledged, but a line damaged on disk was.
    if (first) log('error', 'takedowns.damaged', { file, lines: given.faultCount, line: first.line, why: first.what })
    damage = first && damageOf(given.faultCount, first)
    digest = given.digest
    own = given.list
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

  /** Writes waiting rules, unless the file has them. */
  async function write(): Promise<void> {
    const some = waiting
    const lacking = some.filter((rule) => !isWritten(rule))
    if (lacking.length > 0) await append(lacking)
    await read()
    wait(waiting.filter((rule) => !some.includes(rule)))
  }

  function hold(rule: Rule): void {
    wait([...waiting.filter(({ line }) => line !== rule.line), rule])
    if (!isWritten(rule)) onChange()
  }

  /** Serialized, so that an older text never replaces a newer one. */
  function inTurn(work: () => Promise<void>): Promise<void> {
    const turn = last.then(work)
    last = turn.catch(() => {})
    return turn
  }

  await read()
  return {
    // A rule for a CID also covers everything below it.
    path: (cid, segments) => all.belowCid(cid, segments),
    get rules() {
      return own.rules + early.rules
    },
    get damage() {
      return damage
    },
    get digest() {
      return [digest, ...waiting.map(({ line }) => line)].join('\n')
    },
    refresh: () =>
      inTurn(async () => {
        await read()
        // Retries failed writes; the rules apply in memory in any case.
        if (waiting.length > 0) await write().catch(() => {})
      }),
    hold: (cid, hints) => hold(ruleOf(cid, hints)),
    takeDown(cid, hints) {
      hold(ruleOf(cid, hints))
      return inTurn(async () => {
        try {
          // The operator may have edited it.
          await read()
          await write()
        } catch (error) {
          throw unwritten(error)
        }
      })
    },
  }
}

export const withTakedowns = (loaded: LoadedDenylists, takedowns: Takedowns): DenylistsWithTakedowns => ({
  path: (cid, segments) => takedowns.path(cid, segments) ?? loaded.path(cid, segments),
  name: (name, segments) => loaded.name(name, segments),
  belowName: (name, segments) => loaded.belowName(name, segments),
  get rules() {
    return loaded.rules + takedowns.rules
  },
  get revision() {
    if (takedowns.rules === 0) return loaded.revision
    return createHash('sha256').update(`${loaded.revision}${takedowns.digest}`).digest('hex').slice(0, 8)
  },
  lists: loaded.lists,
  async refresh() {
    await Promise.all([loaded.refresh(), takedowns.refresh()])
  },
  takeDown: takedowns.takeDown,
  hold: takedowns.hold,
  get takedownDamage() {
    return takedowns.damage
  },
  close: loaded.close,
})
