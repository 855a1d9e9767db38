// The list of takedowns: what the operator denied by a command. The gateway writes it itself, and asks it before all others.
import { createHash } from 'node:crypto'
import { appendFile, readFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { CID } from 'multiformats/cid'
import { Failure } from '../core/failure.ts'
import { codeOf, isGone, isNoRoom, makeFolder, syncFolder } from '../core/files.ts'
import { createDenylist, createDenylists } from './denylist.ts'
import type { LoadedDenylists } from './load.ts'
import { readList } from './read-list.ts'

export interface DenylistsWithTakedowns extends LoadedDenylists {
  /** Adds a rule, unless it is there. It is on the platter and holds when this resolves, whatever becomes of other lists. */
  takeDown(cid: CID, hints: { readonly legal: boolean; readonly reason: string | undefined }): Promise<void>
}

/** None where there is no such folder either: that says more of `data` than of takedowns. */
const textOf = (file: string): Promise<string> =>
  readFile(file, 'utf8').catch((error: unknown) => {
    if (isGone(error) || codeOf(error) === 'ENOTDIR') return ''
    throw error
  })

const noRoom = (cause: unknown): Failure =>
  new Failure('no-room', 'disk full: nothing is denied; free space on the disk of the data folder, then repeat it', {
    source: 'ours',
    cause,
  })

const head = 'version: 1\nname: takedowns\n---\n'

/** Rejects where the file is there and cannot be read. */
export async function withTakedowns(
  loaded: LoadedDenylists,
  { file, onChange }: { readonly file: string; readonly onChange: () => void },
): Promise<DenylistsWithTakedowns> {
  let own = createDenylist('takedowns')
  let digest = ''
  let last: Promise<unknown> = Promise.resolve()

  async function read(): Promise<void> {
    const given = await readList('takedowns', await textOf(file))
    if (given.digest === digest) return
    digest = given.digest
    own = given.list
    onChange()
  }

  async function add(rule: string): Promise<void> {
    await makeFolder(dirname(file))
    const before = await textOf(file)
    // A full disk may have cut the line before.
    const start = before === '' ? head : before.endsWith('\n') ? '' : '\n'
    await appendFile(file, `${start}${rule}\n`, { flush: true }).catch((error: unknown) => {
      throw isNoRoom(error) ? noRoom(error) : error
    })
    if (before === '') await syncFolder(dirname(file))
    await read()
  }

  /** One after another, so that an older text never takes the place of a newer one. */
  function inTurn(work: () => Promise<void>): Promise<void> {
    const turn = last.then(work)
    last = turn.catch(() => {})
    return turn
  }

  await read()
  // Without a takedown it costs no look.
  const takedowns = createDenylists(() => (own.rules > 0 ? [own] : []))
  return {
    path: (cid, segments) => takedowns.path(cid, segments) ?? loaded.path(cid, segments),
    name: (name, segments) => loaded.name(name, segments),
    belowName: (name, segments) => loaded.belowName(name, segments),
    get rules() {
      return loaded.rules + own.rules
    },
    get revision() {
      if (own.rules === 0) return loaded.revision
      return createHash('sha256').update(`${loaded.revision}${digest}`).digest('hex').slice(0, 8)
    },
    lists: loaded.lists,
    async refresh() {
      await Promise.all([loaded.refresh(), inTurn(read)])
    },
    takeDown: (cid, { legal, reason }) =>
      inTurn(async () => {
        // The operator may have edited it.
        await read()
        const denial = takedowns.path(cid, [])
        if (denial && denial.legal === legal && denial.reason === reason) return
        const hints = [...(legal ? ['status=451'] : []), ...(reason === undefined ? [] : [`reason=${reason}`])]
        await add([`/ipfs/${cid}`, ...hints].join(' '))
      }),
    close: loaded.close,
  }
}
