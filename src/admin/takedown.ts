// `POST /deny/<cid>` on the admin address. Denies first, so that no reader or upload restores it
// meanwhile.
import { Router } from 'express'
import type { CID } from 'multiformats/cid'
import { type Failure, isFailure } from '../core/failure.ts'
import type { Below, Purged } from '../retrieval/tiers/purge.ts'
import type { TakenDown } from '../upload/api-types.ts'
import type { Pins } from '../upload/pins.ts'
import { answerFailures, cidIn, refuse, Wrong } from './requests.ts'

/** `forgotten`: the reason why it is denied only until the gateway ends. */
export type Takedown = (
  cid: CID,
  why: Why,
) => Promise<{ readonly done: TakenDown | 'busy'; readonly forgotten?: Failure }>
type Why = { readonly legal: boolean; readonly reason: string | undefined }

export type TakedownDeps = {
  /** Applies at once. Rejects with a Failure `disk-full` or `disk` if it is only in memory. */
  readonly deny: (cid: CID, why: Why) => Promise<void>
  /** Lists the blocks below it in the tiers, and what could not be read. Never rejects. */
  readonly below: (cid: CID, signal: AbortSignal) => Promise<Below>
  /** Never rejects. */
  readonly purge: (
    cids: readonly CID[],
    how: { readonly signal: AbortSignal; readonly isAll: boolean },
  ) => Promise<Purged>
  /** True if a pin or an upload on this machine has the block. */
  readonly isPinned: (cid: CID, signal: AbortSignal) => Promise<boolean>
  /** Undefined in thin mode. */
  readonly remove: Pins['remove'] | undefined
}

/**
 * The timeout of the traversal, and of the purge. A large DAG in a slow store takes long, and goes
 * on without its client.
 */
const maxMs = 300_000

export const createTakedown =
  ({ deny, below, purge, isPinned, remove }: TakedownDeps): Takedown =>
  async (cid, why) => {
    // Continue: on a full disk, the deletion frees space.
    const forgotten = await deny(cid, why).then(
      () => undefined,
      (error: unknown) => {
        if (isFailure(error, 'disk-full') || isFailure(error, 'disk-error')) return error
        throw error
      },
    )
    const told = forgotten && { forgotten }
    // The pins are deleted in any case, and the purge has a timeout of its own.
    const { cids, failures: unread } = await below(cid, AbortSignal.timeout(maxMs))
    const removal = (await remove?.(cid)) ?? 'unknown'
    if (removal === 'busy') return { done: removal, ...told }
    const pins = removal === 'unknown' ? null : removal
    const signal = AbortSignal.timeout(maxMs)
    const isHere = await isPinned(cid, signal).catch(() => false)
    // If the pin could not be deleted, purge every block: a failed deletion must not keep it in the
    // tiers.
    const { purged, kept, failures } = await purge(cids, { signal, isAll: isHere && pins?.isGone === false })
    const all = [...unread, ...failures, ...(isHere ? [stillHere] : [])]
    const isGone = pins?.isGone !== false && all.length === 0
    return { done: { cid: cid.toString(), isGone, pins, blocks: purged, kept, failures: all }, ...told }
  }

const stillHere = 'a pin on this machine still has it, which may be one that it is a part of (`cidgate pins ls`)'

export function createTakedownRoute(takedown: Takedown): Router {
  const router = Router()
  router.post('/deny/:cid', async (request, response) => {
    const cid = cidIn(request)
    const { status = '410', reason } = request.query
    if (status !== '410' && status !== '451') throw new Wrong('status is 410, or 451 where the reason is legal')
    // Denylist lines are split at spaces.
    if (reason !== undefined && !(typeof reason === 'string' && /^[\w.:/-]{1,200}$/.test(reason)))
      throw new Wrong('reason is one word of letters, digits and . : / - _, such as malware')
    const { done, forgotten } = await takedown(cid, { legal: status === '451', reason })
    if (forgotten) {
      const status = forgotten.kind === 'disk-full' ? 507 : 500
      if (done !== 'busy') return void response.status(status).json({ status, detail: forgotten.message, ...done })
      return refuse(response, status, `${forgotten.message}; nothing was deleted yet, because it was being uploaded`)
    }
    if (done !== 'busy') return void response.json(done)
    response.set('Retry-After', '1')
    refuse(response, 409, `${cid} is denied now; it was being uploaded, so repeat this to delete it`)
  })
  router.use(answerFailures)
  return router
}
