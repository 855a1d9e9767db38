// Assembles the write side: POST /add, to configured providers or forwarded to another service
// (thin mode), and Kubo's RPC.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import type { Provider } from '../../backends/pinning/contract.ts'
import type { QuotaState } from '../admin/metrics.ts'
import { ConfigError } from '../config/complaints.ts'
import type { Config } from '../config/load.ts'
import { version } from '../config/package.ts'
import { blockKey } from '../core/cid.ts'
import { Failure, isFailure, wordsOf } from '../core/failure.ts'
import type { DataFolder } from '../data-folder/folder.ts'
import { createAddRoute, createAdminAdd } from '../http/add/add.ts'
import { createTokens, mayUpload } from '../http/add/upload-auth.ts'
import { createKuboRoute } from '../http/kubo/rpc.ts'
import { createOpenApiRoute } from '../http/openapi/page.ts'
import { createUploadCounts } from '../observe/requests.ts'
import type { Retrieval } from '../retrieval/retrieval.ts'
import { createSchemaChecks, type SchemaChecks } from '../schemas/checks.ts'
import { joinStore } from '../store/open.ts'
import type { Store } from '../store/store.ts'
import { isOwner } from '../team/team.ts'
import type { UploadFanout } from '../upload/provider-requests.ts'
import { createQuotas, type Quotas, type Uploader } from '../upload/quotas.ts'
import { createThin } from '../upload/thin.ts'
import { createUploads } from '../upload/uploads.ts'
import type { WiringContext } from './components.ts'
import { type Public, takeCounterSync } from './public.ts'
import type { ReadSide } from './reading.ts'

type OwnFolder = { readonly folder: DataFolder; readonly store: Store }

/**
 * The folder is this process's until the last gateway over it has ended. Throws a ConfigError if it
 * cannot be, unless there is nothing to keep in it.
 */
export async function ownDataFolder({ config, clock, log, lease, folders, own }: WiringContext): Promise<OwnFolder> {
  const { data, pinning, upload } = config
  const isNeeded = pinning.providers.length + own.providers.length > 0 && !upload.forwardTo
  const { folder, store } = lease.take(
    'store',
    [data],
    () => {
      const folder = folders.enter(data)
      return { folder, ...joinStore(folder, { clock, log }) }
    },
    async ({ folder, leave }) => {
      await leave()
      folder.leave()
    },
  )
  // An acknowledged upload is never 404, not even for the first client after a start.
  await store.ready.catch((error: unknown) => {
    const isUnwritable = isFailure(error, 'disk-error')
    if (isFailure(error, 'refused') || (isUnwritable && isNeeded)) throw new ConfigError([`data: ${error.message}`])
    if (isUnwritable) log('warn', 'data.write-failed', { folder: data, why: error.message })
    else log('error', 'store.unusable', { why: wordsOf(error) })
  })
  return { folder, store }
}

/** Throws a ConfigError if one of the operator's is not a valid schema. */
export function schemasOf({ upload, responses }: Config): SchemaChecks {
  try {
    return createSchemaChecks({ maxBytes: responses.json.maxBytes, own: upload.schemas })
  } catch (error) {
    const what = `${error instanceof Error ? error.message : error} (expected JSON Schemas)`
    throw new ConfigError([{ path: ['upload', 'schemas'], what }])
  }
}

type Parts = OwnFolder &
  Public & {
    readonly providers: readonly Provider[]
    /** Providers of earlier configurations. */
    readonly former: readonly Provider[]
    readonly reading: ReadSide
    /** Names, fastest first. */
    readonly tiers: readonly string[]
  }

export type WriteSide = ReturnType<typeof wireUploads>

export function wireUploads(context: WiringContext, parts: Parts) {
  const { config, userAgent, clock, lease, log, trace } = context
  const { pinning, upload, responses } = config
  const { folder, store, providers, former, respond, forwarded, limits } = parts
  const { retrieval, denials } = parts.reading
  // Steps that may fail come before any that start work.
  const tokens = createTokens(upload.auth, () => clock.now())
  const reach = { isForThisMachine: upload.auth === 'none', addressOf: forwarded.addressOf }
  const schemas = lease.take('schemas', [upload.schemas, responses.json.maxBytes], () => schemasOf(config))
  const counts = lease.take('upload counts', [], createUploadCounts)
  const quotas = takeQuotas(context, store)
  const { minConfirmations: confirm, acceptWhileUnavailable: queue, timeout: pinMs } = pinning
  const { profile, concurrency, perClient, maxPendingBytes, forwardTo: target } = upload
  const { maxBytes, idleTimeout: idleMs, minRate } = upload
  const intake = {
    ...{ profile, concurrency, perClient, limits: { maxBytes, idleMs, minRate, graceMs: idleMs } },
    ...{ retrieval: takeUploadFanout(context, retrieval), admit: denials.admit, counts, quotas, clock, trace },
  }
  const places = [...providers, ...former].flatMap((one) => one.store ?? [])
  // Running uploads, and deliveries to providers in the background, outlive this gateway.
  const kept = lease.make(createUploads, {
    ...intake,
    ...{ folder, store, maxPendingBytes, providers, places, confirm, queue, pinMs, log },
  })
  const thin = target && lease.make(createThin, { ...intake, target, answerMs: pinMs, userAgent })
  const clientOf = (request: IncomingMessage): Uploader => {
    const client = parts.clientOf(request)
    const quota = tokens.quotaOf(request.headers)
    return quota ? { client, quota } : client
  }
  const uploads = thin ?? kept
  const takers = { uploads, tokens, reach, schemas, respond, clientOf }
  const hasTokens = typeof upload.auth !== 'string'
  const kubo = { ...takers, uploads: kept, retrieval, version, tiers: parts.tiers, clock, log, limits }
  const isTaken = thin !== undefined || providers.length > 0
  return {
    counts,
    /** The state of each token with a quota. */
    quotas: () => quotasOf(upload, quotas),
    routes: [
      createOpenApiRoute({ schemas: schemas.all, hasTokens, mode: responses.types, respond }),
      createAddRoute(takers),
      ...(upload.kuboRpc ? [createKuboRoute({ ...kubo, stalledMs: respond.stalledMs })] : []),
    ],
    /** Undefined if uploads go nowhere. */
    adminAdd: isTaken ? createAdminAdd({ ...parts, respond: parts.adminRespond, uploads, schemas }) : undefined,
    /** The upload section of the front page. */
    offered: {
      /** The answer for this client: on a page of this address, or for a program. */
      uploadsFor(request: IncomingMessage, to: 'page' | 'program') {
        if (!isTaken) return 'closed'
        if (hasTokens) return 'token'
        const origin = to === 'page' ? `http://${forwarded.hostOf(request)}` : undefined
        return mayUpload(request, origin, reach) ? 'open' : 'closed'
      },
      /** True if shared caches may store the page. */
      isSameForAll: !reach.isForThisMachine,
      maxBytes,
    } as const,
    /** Undefined in thin mode. */
    pins: thin ? undefined : kept.pins,
    probe: kept.probe,
    /** Uploads of a program; unsupported in thin mode. */
    uploads: kept,
    schemas,
  }
}

/** Undefined if no token has one. */
function takeQuotas(context: WiringContext, store: Store): Quotas | undefined {
  const { config, clock, log, lease } = context
  const { auth } = config.upload
  if (typeof auth === 'string' || !auth.tokens.some((one) => typeof one === 'object' && one.quota)) return undefined
  const shared = takeCounterSync(context)
  return lease.make(createQuotas, { store, shared, clock, log })
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
  const announce = (cid: CID): void => {
    if (isOwner(team)) team.uploadEpochs.note(blockKey(cid))
  }
  return lease.take('fanout', [team], () => ({
    get joined() {
      return all.joined
    },
    async store(cid, bytes, signal) {
      announce(cid)
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
      announce(cid)
      for (const one of all.now) one.forget(cid)
    },
  }))
}
