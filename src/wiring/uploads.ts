// Assembles the write side: POST /add, to configured providers or forwarded to another service
// (thin mode), and Kubo's RPC.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import type { Provider } from '../../backends/pinning/contract.ts'
import type { QuotaState } from '../admin/metrics.ts'
import type { Config } from '../config/load.ts'
import { version } from '../config/package.ts'
import { blockKey } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'
import type { DataFolder } from '../data-folder/folder.ts'
import { createAddRoute, type Route } from '../http/add/add.ts'
import { type AdminAdd, createAdminAdd } from '../http/add/admin-add.ts'
import { createTokens, mayUpload } from '../http/add/upload-auth.ts'
import { createKuboRoute } from '../http/kubo/rpc.ts'
import { createOpenApiRoute } from '../http/openapi/page.ts'
import type { Respond } from '../http/wire/problem.ts'
import { createUploadCounts, type UploadCounts } from '../observe/requests.ts'
import type { Retrieval } from '../retrieval/session.ts'
import type { SchemaChecks } from '../schemas/checks.ts'
import type { Store } from '../store/store.ts'
import { isOwner } from '../team/team.ts'
import type { UploadFanout } from '../upload/confirm.ts'
import { createQuotas, type Quotas, type Uploader } from '../upload/quotas.ts'
import { createThin, type Target, type ThinUploads } from '../upload/thin.ts'
import { createUploads, type Uploads } from '../upload/uploads.ts'
import { type Public, takeCounterSync } from './public.ts'
import type { ReadSide } from './reading.ts'
import { schemasOf, type WiringContext } from './wiring-context.ts'

export type WriteSide = {
  readonly counts: UploadCounts
  /** The state of each token with a quota. */
  readonly quotas: () => readonly QuotaState[]
  readonly routes: readonly Route[]
  /** Undefined if uploads go nowhere. */
  readonly adminAdd: AdminAdd | undefined
  /** The upload section of the front page. */
  readonly offered: {
    /** The answer for this client: on a page of this address, or for a program. */
    readonly uploadsFor: (request: IncomingMessage, to: 'page' | 'program') => 'open' | 'token' | 'closed'
    /** True if shared caches may store the page. */
    readonly isSameForAll: boolean
    readonly maxBytes: number
  }
  /** Undefined in thin mode. */
  readonly pins: Uploads['pins'] | undefined
  readonly probe: Uploads['probe']
  /** Uploads of a program; unsupported in thin mode. */
  readonly uploads: Uploads
  readonly schemas: SchemaChecks
}

export type UploadParts = {
  readonly folder: DataFolder
  readonly store: Store
  readonly providers: readonly Provider[]
  /** Providers of earlier configurations. */
  readonly former: readonly Provider[]
  readonly reading: Pick<ReadSide, 'retrieval' | 'denials'>
  readonly respond: Respond
  readonly clientOf: Public['clientOf']
  readonly limits: Public['limits']
  readonly forwarded: Public['forwarded']
  readonly watch: Public['watch']
  /** Names, fastest first. */
  readonly tiers: readonly string[]
}

type Stores = Pick<UploadParts, 'folder' | 'store' | 'providers' | 'former'> & {
  readonly fanout: UploadFanout
  readonly admit: (cid: CID) => void
  readonly counts: UploadCounts
  readonly quotas: Quotas | undefined
}

export function wireUploads(context: WiringContext, parts: UploadParts): WriteSide {
  const { config, clock, lease, log } = context
  const { upload, responses } = config
  const { retrieval, denials } = parts.reading
  const { respond } = parts
  // Steps that may fail come before any that start work.
  const tokens = createTokens(upload.auth, () => clock.now())
  const reach = { isForThisMachine: upload.auth === 'none', addressOf: parts.forwarded.addressOf }
  const schemas = lease.take('schemas', [upload.schemas, responses.json.maxBytes], () => schemasOf(config))
  const counts = lease.take('upload counts', [], createUploadCounts)
  const quotas = takeQuotas(context, parts.store)
  const stores = { ...parts, fanout: takeUploadFanout(context, retrieval), admit: denials.admit, counts, quotas }
  const uploads = takeUploads(context, stores)
  const thin = upload.forwardTo && takeThin(context, upload.forwardTo, stores)
  const clientOf = (request: IncomingMessage): Uploader => {
    const client = parts.clientOf(request)
    const quota = tokens.quotaOf(request.headers)
    return quota ? { client, quota } : client
  }
  const add = createAddRoute({ uploads: thin ?? uploads, tokens, reach, schemas, respond, clientOf })
  const description = createOpenApiRoute({
    schemas: schemas.all,
    hasTokens: typeof upload.auth !== 'string',
    mode: responses.types,
    respond,
  })
  const kubo = upload.kuboRpc
    ? [
        createKuboRoute({
          ...{ uploads, retrieval, tokens, reach, version, clock, respond, log, clientOf },
          ...{ tiers: parts.tiers, limits: parts.limits, stalledMs: respond.stalledMs },
        }),
      ]
    : []
  const { probe } = uploads
  const pins = thin ? undefined : uploads.pins
  const isTaken = thin !== undefined || parts.providers.length > 0
  const adminAdd = isTaken ? createAdminAdd({ ...parts, uploads: thin ?? uploads, schemas }) : undefined
  const offered = {
    uploadsFor(request: IncomingMessage, to: 'page' | 'program') {
      if (!isTaken) return 'closed'
      if (typeof upload.auth !== 'string') return 'token'
      const origin = to === 'page' ? `http://${parts.forwarded.hostOf(request)}` : undefined
      return mayUpload(request, origin, reach) ? 'open' : 'closed'
    },
    isSameForAll: !reach.isForThisMachine,
    maxBytes: upload.maxBytes,
  } as const
  const routes = [description, add, ...kubo]
  const states = () => quotasOf(upload, quotas)
  return { counts, quotas: states, routes, adminAdd, offered, pins, probe, uploads, schemas }
}

/** They outlive this gateway, as does the store that holds them. Undefined: no token has one. */
function takeQuotas(context: WiringContext, store: Store): Quotas | undefined {
  const { config, clock, log, lease } = context
  const { auth } = config.upload
  if (typeof auth === 'string' || !auth.tokens.some((one) => typeof one === 'object' && one.quota)) return undefined
  const shared = takeCounterSync(context)
  return lease.take('quotas', [store, shared], () => createQuotas({ store, shared, clock, log }))
}

/** Tokens of one name share a quota; the state shows that of the first. */
function quotasOf({ auth }: Config['upload'], quotas: Quotas | undefined): readonly QuotaState[] {
  if (!quotas) return []
  const all = new Map<string, QuotaState>()
  for (const one of typeof auth === 'string' ? [] : auth.tokens) {
    if (typeof one === 'string' || one.name === undefined || !one.quota || all.has(one.name)) continue
    const { name: token, quota } = one
    all.set(token, { token, quota, used: quotas.used(token), refused: quotas.refused(token) })
  }
  return [...all.values()]
}

const receivingOf = ({
  maxBytes,
  idleTimeout: idleMs,
  minRate,
  profile,
  concurrency,
  perClient,
}: Config['upload']) => ({
  limits: { maxBytes, idleMs, minRate, graceMs: idleMs },
  ...{ profile, concurrency, perClient },
})

/** Takes over running uploads, and deliveries to providers in the background. */
function takeUploads({ config, clock, log, lease, trace }: WiringContext, parts: Stores): Uploads {
  const { providers, former, fanout: retrieval, quotas } = parts
  const { minConfirmations: confirm, acceptWhileUnavailable: queue, timeout: pinMs } = config.pinning
  const { maxPendingBytes } = config.upload
  const settings = { ...receivingOf(config.upload), maxPendingBytes, confirm, queue, pinMs }
  const places = [...providers, ...former].flatMap(({ store }) => store ?? [])
  return lease.open('uploads', [config.data, settings, providers, former, quotas], () =>
    createUploads({ ...parts, ...settings, places, retrieval, clock, log, trace }),
  )
}

function takeThin(
  { config, userAgent, clock, lease, trace }: WiringContext,
  target: Target,
  parts: Stores,
): ThinUploads {
  const { timeout: answerMs } = config.pinning
  const settings = { ...receivingOf(config.upload), target, answerMs, userAgent }
  return lease.open('thin uploads', [settings, parts.quotas], () =>
    createThin({ ...parts, ...settings, retrieval: parts.fanout, clock, trace }),
  )
}

/**
 * Covers all tiers and memories of this process, including those of a gateway created during the
 * upload or about to end: an upload acknowledged by one must be readable from the others at once.
 */
function takeUploadFanout({ lease, team }: WiringContext, retrieval: Retrieval): UploadFanout {
  const all = lease.take('every retrieval', [], () => ({ now: new Set<Retrieval>(), joined: 0 }))
  lease.take(
    'retrieval that is written to',
    [retrieval],
    () => {
      all.now.add(retrieval)
      all.joined++
      return { retrieval }
    },
    () => all.now.delete(retrieval),
  )
  // Sibling processes ask this one for the block, even before the upload is acknowledged.
  const tell = (cid: CID): void => {
    if (isOwner(team)) team.uploadEpochs.note(blockKey(cid))
  }
  return lease.take('fanout', [team], () => ({
    get joined() {
      return all.joined
    },
    async store(cid, bytes, signal) {
      tell(cid)
      const lacking = await Promise.all([...all.now].map((one) => one.store(cid, bytes, signal)))
      return [...new Set(lacking.flat())]
    },
    get sharedTiers() {
      return [...new Set([...all.now].flatMap((one) => one.sharedTiers))]
    },
    async bring(tier, cid, bytes, signal) {
      const having = [...all.now].filter((one) => one.sharedTiers.includes(tier))
      if (having.length === 0) throw new Failure('unavailable', `there is no shared tier ${tier}`, { source: 'tier' })
      await Promise.all(having.map((one) => one.bring(tier, cid, bytes, signal)))
    },
    forget(cid) {
      tell(cid)
      for (const one of all.now) one.forget(cid)
    },
  }))
}
