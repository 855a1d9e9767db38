// Applies the operator's denylists to reads, names and uploads.
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import { ConfigError } from '../config/complaints.ts'
import { type DenylistsWithTakedowns, loadDenylists, openTakedowns, withTakedowns } from '../deny/load.ts'
import type { ResponseCache } from '../http/content/response-cache.ts'
import type { Whole } from './wiring-context.ts'

export type Denials = {
  readonly lists: DenylistsWithTakedowns
  readonly visit: DenylistsWithTakedowns['visit']
  readonly visitName: DenylistsWithTakedowns['visitName']
  /**
   * Checks a block to store against the newest gateway's denylists, even if the upload began before
   * that gateway.
   */
  readonly admit: (cid: CID) => void
  /** Adds a CID to the list of takedowns, even if another list denies it already. */
  readonly takeDown: DenylistsWithTakedowns['takeDown']
  /** Makes this the newest gateway. */
  begin(): void
}

/**
 * Reads all lists, at a start and at a reload. Rejects with a ConfigError if one cannot be read.
 */
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
  const { visit, visitName, takeDown } = loaded
  const newest = whole.lease.take('newest denials', [], () => ({ visit }))
  return {
    lists: loaded,
    visit,
    visitName,
    admit: (cid) => newest.visit(cid, []),
    takeDown,
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
  // Kept apart from the other lists, so that a takedown during a reload also applies to the gateway
  // that is being created.
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
  takedowns.catch(() => {}) // reported by the lists
  return { lists, isNew }
}
