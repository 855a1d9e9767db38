// `POST /deny/<cid>` on the admin address. Denied first, so that no reader and no upload brings it back meanwhile.
import { Router } from 'express'
import type { CID } from 'multiformats/cid'
import { type Failure, isFailure } from '../core/failure.ts'
import type { Below, Purged } from '../retrieval/tiers/purge.ts'
import type { Pins } from '../upload/pins/pins.ts'
import type { TakenDown } from '../upload/pins/told.ts'
import { answerFailures, cidIn, refuse, Wrong } from './requests.ts'

/** `forgotten`: why it is denied only until the gateway ends. */
export type Takedown = (
  cid: CID,
  why: Why,
) => Promise<{ readonly done: TakenDown | 'busy'; readonly forgotten?: Failure }>
type Why = { readonly legal: boolean; readonly reason: string | undefined }

export type TakedownDeps = {
  /** It holds at once. Rejects with a Failure `no-room` or `disk` where it holds in memory alone. */
  readonly deny: (cid: CID, why: Why) => Promise<void>
  /** What lies below it in the tiers, and what of that could not be read. Does not reject. */
  readonly below: (cid: CID, signal: AbortSignal) => Promise<Below>
  /** Does not reject. */
  readonly purge: (
    cids: readonly CID[],
    how: { readonly signal: AbortSignal; readonly isAll: boolean },
  ) => Promise<Purged>
  /** Whether a pin or an upload on this machine has the block. */
  readonly isPinned: (cid: CID, signal: AbortSignal) => Promise<boolean>
  /** None in thin mode. */
  readonly remove: Pins['remove'] | undefined
}

/** Each of the walk and the purge. A large DAG in a slow store takes its time, and does not end with its client. */
const mostMs = 300_000

export const createTakedown =
  ({ deny, below, purge, isPinned, remove }: TakedownDeps): Takedown =>
  async (cid, why) => {
    // A disk that is full gets room by what is deleted.
    const forgotten = await deny(cid, why).then(
      () => undefined,
      (error: unknown) => {
        if (isFailure(error, 'no-room') || isFailure(error, 'disk')) return error
        throw error
      },
    )
    const told = forgotten && { forgotten }
    // The pins go in any case, and what is left of the tiers has its own time.
    const { cids, failures: unread } = await below(cid, AbortSignal.timeout(mostMs))
    const removal = (await remove?.(cid)) ?? 'unknown'
    if (removal === 'busy') return { done: removal, ...told }
    const pins = removal === 'unknown' ? null : removal
    const signal = AbortSignal.timeout(mostMs)
    const isHere = await isPinned(cid, signal).catch(() => false)
    // A pin that could not be deleted says nothing of what other pins need, and keeps nothing in the tiers.
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
    // A list takes words apart at spaces.
    if (reason !== undefined && !(typeof reason === 'string' && /^[\w.:/-]{1,200}$/.test(reason)))
      throw new Wrong('reason is one word of letters, digits and . : / - _, such as malware')
    const { done, forgotten } = await takedown(cid, { legal: status === '451', reason })
    if (forgotten) {
      const status = forgotten.kind === 'no-room' ? 507 : 500
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
