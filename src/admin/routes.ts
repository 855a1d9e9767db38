// Routes of the admin address for pins, uploads and takedowns, and the errors that all its routes share.
import type { Express, Request, Response } from 'express'
import type { CID } from 'multiformats/cid'
import { parseCid } from '../core/cid.ts'
import { cancelled, type Failure, type FailureKind, isFailure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { size } from '../core/units.ts'
import type { Below, Purged } from '../retrieval/tiers/dag-in-tiers.ts'
import type { Asked } from '../store/store.ts'
import type { Standing, TakenDown } from '../upload/api-types.ts'
import type { Pins } from '../upload/pins.ts'

/** A malformed request: 400. */
export class Wrong extends Error {}

export const refuse = (response: Response, status: number, detail: string): void => {
  response.status(status).json({ status, detail })
}

function cidIn({ params }: Request): CID {
  const text = String(params['cid'])
  const cid = parseCid(text)
  if (!cid) throw new Wrong(`${text.slice(0, 100)} is not a CID`)
  return cid
}

/** Aborts when the client leaves. */
export function untilLeft(response: Response): AbortSignal {
  const leaving = new AbortController()
  response.once('close', () => leaving.abort(cancelled()))
  return leaving.signal
}

/** Any other kind is a failing provider or tier. */
const statuses: Partial<Record<FailureKind, number>> = {
  malformed: 400,
  denied: 409,
  overloaded: 503,
  cancelled: 503,
  'disk-full': 507,
}

/**
 * Handles failures, and paths that cannot be decoded: Express would send a page that shows the
 * sources.
 */
export const failing =
  (log: Log) =>
  (error: unknown, { method, path }: Request, response: Response, next: (error: unknown) => void): void => {
    const isClients = error instanceof Wrong || (error as { readonly status?: unknown }).status === 400
    if (!isClients && !isFailure(error)) {
      const requestId = response.get('X-Request-Id')
      const shown = error instanceof Error ? error.stack : String(error)
      log('error', 'request.error', { requestId, method, path, error: shown })
    }
    if (response.headersSent) return next(error)
    if (error instanceof Wrong) return refuse(response, 400, error.message)
    if (isClients) return refuse(response, 400, 'this path cannot be decoded')
    if (!isFailure(error)) return refuse(response, 500, 'the gateway failed; its log has the reason')
    if (error.retryAfterMs !== undefined) response.set('Retry-After', String(Math.ceil(error.retryAfterMs / 1000)))
    refuse(response, statuses[error.kind] ?? 502, error.message)
  }

const defaultPage = 100
const maxOnPage = 1000
const standings: ReadonlySet<string> = new Set<Standing>(['pinned', 'pending', 'abandoned', 'missing'])

export function addPinRoutes(app: Express, pins: Pins): void {
  app.get('/pins', async (request, response) => {
    const filters = askedBy(request)
    const cid = filters.name === undefined ? undefined : parseCid(filters.name)
    if (!cid) return void response.json(await pins.list(filters))
    const pin = await pins.find(cid)
    response.json({ pins: pin ? [pin] : [], next: undefined })
  })
  app.get('/pins/:cid', async (request, response) => {
    const pin = await pins.find(cidIn(request))
    if (pin) response.json(pin)
    else unknownPin(request, response)
  })
  app.delete('/pins/:cid', async (request, response) => {
    const removal = await pins.remove(cidIn(request))
    if (removal === 'unknown') return unknownPin(request, response)
    if (removal !== 'busy') return void response.json(removal)
    response.set('Retry-After', '1')
    refuse(response, 409, `${request.params['cid']} is being uploaded now; delete it when its client has an answer`)
  })
  app.post('/pins/:cid/verify', async (request, response) => {
    const verification = await pins.verify(cidIn(request), untilLeft(response))
    if (verification === 'unknown') unknownPin(request, response)
    else response.json(verification)
  })
  app.post('/pins/:cid/sync', async (request, response) => {
    const brought = await pins.bring(cidIn(request))
    if (brought === 'unknown') return unknownPin(request, response)
    if (brought !== 'not-here') return void response.status(brought.to.length > 0 ? 202 : 200).json(brought)
    refuse(
      response,
      409,
      `the blocks of ${request.params['cid']} are not on this machine, so they cannot be sent from it`,
    )
  })
  app.get('/uploads', async (_request, response) => {
    const [{ uploads: open }, uploads] = await Promise.all([pins.waiting(), pins.waitingPage(maxOnPage)])
    response.json({ open, uploads })
  })
  // DELETE instead of POST, because a page of another origin needs a preflight for it, which is
  // never allowed.
  app.delete('/uploads/:cid/:provider', async ({ params, query }, response) => {
    const { cid, provider } = params
    const parsed = parseCid(cid)
    const outcome = parsed && (await pins.giveUp(parsed, provider, query['losing'] === 'true'))
    if (outcome === 'abandoned') return void response.status(204).end()
    if (outcome === 'only-copy') {
      const detail = `only this gateway holds ${cid}, which would be lost; add ?losing=true to give it up anyway`
      return refuse(response, 409, detail)
    }
    refuse(response, 404, `no upload ${cid} waits for a provider ${provider}; see /uploads`)
  })
}

const unknownPin = ({ params }: Request, response: Response): void =>
  refuse(response, 404, `${params['cid']} is not pinned; GET /pins lists what is`)

function askedBy({ query }: Request): Asked {
  const text = (name: string): string | undefined => {
    const value = query[name]
    if (value === undefined || value === '') return undefined
    if (typeof value !== 'string') throw new Wrong(`${name} is there twice`)
    return value
  }
  const read = <T>(name: string, expected: string, parse: (value: string) => T | undefined): T | undefined => {
    const value = text(name)
    if (value === undefined) return undefined
    const parsed = parse(value)
    if (parsed === undefined) throw new Wrong(`${name}=${value.slice(0, 100)} is not ${expected}`)
    return parsed
  }
  const time = (value: string) => (Number.isNaN(Date.parse(value)) ? undefined : Date.parse(value))
  const count = (value: string) =>
    /^[1-9]\d{0,3}$/.test(value) && Number(value) <= maxOnPage ? Number(value) : undefined
  const after = (value: string) => (/^\d{1,15}$/.test(value) ? Number(value) : undefined)
  const odd = Object.keys(query).find((name) => !filters.has(name))
  if (odd !== undefined) throw new Wrong(`${odd.slice(0, 100)} is not one of ${[...filters].join(', ')}`)
  return {
    limit: read('limit', `a number from 1 to ${maxOnPage}`, count) ?? defaultPage,
    after: read('after', 'the `next` of a page', after),
    name: text('name'),
    holder: text('provider'),
    state: read('state', `one of ${[...standings].join(', ')}`, (one) =>
      standings.has(one) ? (one as Standing) : undefined,
    ),
    since: read('since', 'a time such as 2026-01-31', time),
    until: read('until', 'a time such as 2026-01-31', time),
    minBytes: read('min', 'a size such as 10MiB', bytesOf),
    maxBytes: read('max', 'a size such as 10MiB', bytesOf),
  }
}

const bytesOf = (text: string): number | undefined => (/^\d+$/.test(text) ? Number(text) : size().safeParse(text).data)

const filters: ReadonlySet<string> = new Set([
  'limit',
  'after',
  'name',
  'provider',
  'state',
  'since',
  'until',
  'min',
  'max',
])

/** `forgotten`: the reason why it is denied only until the gateway ends. */
export type Takedown = (
  cid: CID,
  why: Why,
) => Promise<{ readonly done: TakenDown | 'busy'; readonly forgotten?: Failure }>
type Why = { readonly legal: boolean; readonly reason: string | undefined }

type TakedownDeps = {
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

/** Denies first, so that no reader or upload restores the content meanwhile. */
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
    const unsaved = forgotten && { forgotten }
    // The pins are deleted in any case, and the purge has a timeout of its own.
    const { cids, failures: unread } = await below(cid, AbortSignal.timeout(maxMs))
    const removal = (await remove?.(cid)) ?? 'unknown'
    if (removal === 'busy') return { done: removal, ...unsaved }
    const pins = removal === 'unknown' ? null : removal
    const signal = AbortSignal.timeout(maxMs)
    const isHere = await isPinned(cid, signal).catch(() => false)
    // If the pin could not be deleted, purge every block: a failed deletion must not keep it in the
    // tiers.
    const { purged, kept, failures } = await purge(cids, { signal, isAll: isHere && pins?.isGone === false })
    const all = [...unread, ...failures, ...(isHere ? [stillHere] : [])]
    const isGone = pins?.isGone !== false && all.length === 0
    return { done: { cid: cid.toString(), isGone, pins, blocks: purged, kept, failures: all }, ...unsaved }
  }

const stillHere = 'a pin on this machine still has it, which may be one that it is a part of (`cidgate pins ls`)'

export function addTakedownRoute(app: Express, takedown: Takedown): void {
  app.post('/deny/:cid', async (request, response) => {
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
}
