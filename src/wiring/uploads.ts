// The write side put together: POST /add, by providers of our own or on to another service (thin mode), and Kubo's door.
import type { Provider } from '../../backends/pinning/contract.ts'
import type { Config } from '../config/load.ts'
import { version } from '../config/package.ts'
import { createAddRoute, type Route } from '../http/add.ts'
import { createKuboRoute } from '../http/kubo-rpc.ts'
import { createOpenApiRoute } from '../http/openapi.ts'
import type { Respond } from '../http/respond.ts'
import { createTokens } from '../http/tokens.ts'
import type { Retrieval } from '../retrieval/session.ts'
import type { ReceiveLimits } from '../upload/receive.ts'
import type { Spools } from '../upload/spool.ts'
import { createThrough, type Through } from '../upload/through.ts'
import type { Target } from '../upload/through-forward.ts'
import { createUploads, type Uploads } from '../upload/uploads.ts'
import type { Reading } from './reading.ts'
import { schemasOf } from './schemas.ts'
import type { Whole } from './whole.ts'

export type WriteSide = {
  readonly routes: readonly Route[]
  /** What is on its way to providers; in thin mode nothing is. */
  readonly confirmation: Uploads['confirmation'] | undefined
  readonly probe: Uploads['probe']
  /** What was accepted and waits for a provider can be read. */
  readonly open: Uploads['open']
}

type Everywhere = Pick<Retrieval, 'store' | 'forget'>

type Parts = {
  readonly providers: readonly Provider[]
  readonly spools: Spools
  readonly reading: Pick<Reading, 'retrieval' | 'denials'>
  readonly respond: Respond
}

export function wireUploads(whole: Whole, parts: Parts): WriteSide {
  const { config, clock, lease } = whole
  const { upload, responses } = config
  const { retrieval, denials } = parts.reading
  const { respond } = parts
  // What may be refused comes before what begins to work.
  const tokens = createTokens(upload.auth)
  const schemas = lease.take('schemas', [upload.schemas, responses.json.maxBytes], () => schemasOf(config))
  const everywhere = takeEverywhere(whole, retrieval)
  const uploads = takeUploads(whole, parts, everywhere)
  const through = upload.through && takeThrough(whole, upload.through, parts, everywhere)
  const add = createAddRoute({ uploads: through ?? uploads, tokens, schemas, respond })
  const description = createOpenApiRoute({
    schemas: schemas.all,
    hasTokens: upload.auth !== 'none',
    hasRpc: upload.rpc,
    mode: responses.types,
    respond,
  })
  const { visit } = denials
  const kubo = upload.rpc
    ? [createKuboRoute({ uploads, retrieval, tokens, visit, version, stalledMs: respond.stalledMs, clock, respond })]
    : []
  const { probe, open } = uploads
  return { routes: [description, add, ...kubo], confirmation: through ? undefined : uploads.confirmation, probe, open }
}

const limitsOf = ({ maxBytes, idle, minRate }: Config['upload']): ReceiveLimits => ({
  maxBytes,
  idleMs: idle,
  minRate,
  graceMs: idle,
})

/**
 * Every tier and every memory of this process, also those of a gateway that came while an upload was received or of one
 * that goes: what is acknowledged by one of them is read from another in the next moment.
 */
function takeEverywhere({ lease }: Whole, retrieval: Retrieval): Everywhere {
  const all = lease.take('every retrieval', [], () => new Set<Retrieval>())
  lease.take(
    'retrieval that is written to',
    [retrieval],
    () => {
      all.add(retrieval)
      return { retrieval }
    },
    () => all.delete(retrieval),
  )
  return lease.take('everywhere', [], () => ({
    async store(cid, bytes, signal) {
      await Promise.all([...all].map((one) => one.store(cid, bytes, signal)))
    },
    forget(cid) {
      for (const one of all) one.forget(cid)
    },
  }))
}

/** With what is being received, and what goes on to providers behind an answer. */
function takeUploads({ config, clock, log, lease }: Whole, parts: Parts, retrieval: Everywhere): Uploads {
  const { data, pinning, upload } = config
  const { confirm, queue, timeout: pinMs } = pinning
  const { profile, concurrency, mostBytes } = upload
  const { providers, spools, reading } = parts
  const limits = limitsOf(upload)
  return lease.take(
    'uploads',
    [data, profile, limits, concurrency, mostBytes, confirm, queue, pinMs, providers, spools, reading.denials.lists],
    () =>
      createUploads({
        data,
        profile,
        limits,
        concurrency,
        mostBytes,
        providers,
        spools,
        confirm,
        queue,
        pinMs,
        retrieval,
        admit: (cid) => reading.denials.visit(cid, []),
        clock,
        log,
      }),
    (uploads) => uploads.close(),
  )
}

function takeThrough({ config, clock, lease }: Whole, target: Target, parts: Parts, retrieval: Everywhere): Through {
  const { profile, concurrency } = config.upload
  const { timeout: answerMs } = config.pinning
  const { userAgent } = config.retrieval
  const { denials } = parts.reading
  const limits = limitsOf(config.upload)
  return lease.take(
    'through',
    [target, profile, limits, concurrency, answerMs, userAgent, denials.lists],
    () =>
      createThrough({
        target,
        profile,
        limits,
        concurrency,
        answerMs,
        userAgent,
        retrieval,
        admit: (cid) => denials.visit(cid, []),
        clock,
      }),
    (through) => through.close(),
  )
}
