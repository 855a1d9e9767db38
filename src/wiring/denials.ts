// The operator's denylists, applied to reads, names and uploads.
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import { ConfigError } from '../config/complaints.ts'
import { Failure } from '../core/failure.ts'
import { loadDenylists } from '../deny/load.ts'
import { type DenylistsWithTakedowns, openTakedowns, withTakedowns } from '../deny/takedowns.ts'
import type { ResponseCache } from '../http/content/response-cache.ts'
import type { Whole } from './whole.ts'

export type Denials = {
  readonly lists: DenylistsWithTakedowns
  /** Throws a Failure `denied` for a CID and path that this gateway must not keep or serve. */
  readonly visit: (cid: CID, rest: readonly string[]) => void
  /** The same for a path below a name. */
  readonly visitName: (name: string, rest: readonly string[]) => void
  /** Asks the newest gateway's denylists about a block to keep, also for an upload that began before that gateway. */
  readonly admit: (cid: CID) => void
  /** Denies a CID from now on, in the list of takedowns, also where another list denies it now. */
  readonly takeDown: DenylistsWithTakedowns['takeDown']
  /** From now on this is the newest gateway. */
  begin(): void
}

/** Rejects with a ConfigError where a list cannot be read: at a start as at a reload, which reads all of them again. */
export async function wireDenials(whole: Whole): Promise<Denials> {
  const { lists, isNew } = takeLists(whole)
  const loaded = await lists
    .then(async (kept) => {
      if (!isNew) await kept.refresh()
      return kept
    })
    .catch((error: unknown) => {
      throw new ConfigError([`denylists: ${error instanceof Error ? error.message : error}`])
    })
  const refuse = (denial: ReturnType<DenylistsWithTakedowns['path']>): void => {
    if (denial) throw denied(denial)
  }
  const visit: Denials['visit'] = (cid, rest) => refuse(loaded.path(cid, rest))
  const newest = whole.lease.take('newest denials', [], () => ({ visit }))
  return {
    lists: loaded,
    visit,
    visitName: (name, rest) => refuse(loaded.belowName(name, rest)),
    admit: (cid) => newest.visit(cid, []),
    takeDown: loaded.takeDown,
    begin() {
      newest.visit = visit
    },
  }
}

function takeLists(whole: Whole): { lists: Promise<DenylistsWithTakedowns>; isNew: boolean } {
  const { config, clock, log, lease } = whole
  const { denylists, data, retrieval } = config
  const { userAgent } = retrieval
  const folder = join(data, 'denylists')
  const hots = lease.take('every hot', [], () => new Set<ResponseCache>())
  const onChange = () => {
    for (const hot of hots) hot.clear()
  }
  // Of their own: a takedown while a reload brings other denylists is one of the gateway that is being made, too.
  const takedowns = lease.take('takedowns', [data], () =>
    openTakedowns({ file: join(folder, 'takedowns.deny'), onChange, log }),
  )
  let isNew = false
  const lists = lease.take(
    'denylists',
    [denylists, data, userAgent],
    () => {
      isNew = true
      return loadDenylists(denylists, { clock, log, userAgent, folder, onChange }).then((loaded) =>
        takedowns
          .then(async (opened) => {
            await opened.refresh()
            return withTakedowns(loaded, opened)
          })
          .catch((error: unknown) => {
            loaded.close()
            throw error
          }),
      )
    },
    (loading) =>
      loading.then(
        (loaded) => loaded.close(),
        () => {},
      ),
  )
  takedowns.catch(() => {}) // told by the lists
  return { lists, isNew }
}

function denied({ list, legal, reason }: { list: string; legal: boolean; reason: string | undefined }): Failure {
  const why = reason === undefined ? '' : `: ${reason}`
  return new Failure('denied', `the list ${list} of this gateway's operator denies it${why}`, {
    source: 'ours',
    facts: { legal },
  })
}
