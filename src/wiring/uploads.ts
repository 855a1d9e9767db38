// The write side put together: POST /add, by providers of our own or on to another service (thin mode), and Kubo's door.
import type { Provider } from '../../backends/pinning/contract.ts'
import { version } from '../config/package.ts'
import { createAddRoute, type Route } from '../http/add.ts'
import { createKuboRoute } from '../http/kubo-rpc.ts'
import { createOpenApiRoute } from '../http/openapi.ts'
import { createTokens } from '../http/tokens.ts'
import type { Spools } from '../upload/spool.ts'
import { createThrough } from '../upload/through.ts'
import { createUploads, type Uploads } from '../upload/uploads.ts'
import type { Reading } from './reading.ts'
import { schemasOf } from './schemas.ts'
import type { Whole } from './whole.ts'

export type WriteSide = {
  readonly routes: readonly Route[]
  /** What is on its way to providers; in thin mode nothing is. */
  readonly confirmation: Uploads['confirmation'] | undefined
}

export function wireUploads(
  { config, clock, log, onClose }: Whole,
  parts: {
    readonly providers: readonly Provider[]
    readonly spools: Spools
    readonly reading: Pick<Reading, 'retrieval' | 'visit'>
    readonly onError: (error: unknown) => void
  },
): WriteSide {
  const { providers, spools, onError } = parts
  const { retrieval, visit } = parts.reading
  const { upload, pinning, responses } = config
  const { profile, concurrency } = upload
  const limits = { maxBytes: upload.maxBytes, idleMs: upload.idle, minRate: upload.minRate, graceMs: upload.idle }
  // What may be refused comes before what begins to work.
  const tokens = createTokens(upload.auth)
  const schemas = schemasOf(config)
  const uploads = createUploads({
    data: config.data,
    profile,
    limits,
    concurrency,
    mostBytes: upload.mostBytes,
    providers,
    spools,
    confirm: pinning.confirm,
    queue: pinning.queue,
    pinMs: pinning.timeout,
    retrieval,
    admit: (cid) => visit(cid, []),
    clock,
    log,
  })
  const through = upload.through
    ? createThrough({
        target: upload.through,
        profile,
        limits,
        concurrency,
        answerMs: pinning.timeout,
        userAgent: config.retrieval.userAgent,
        retrieval,
        admit: (cid) => visit(cid, []),
        clock,
      })
    : undefined
  const add = createAddRoute({ uploads: through ?? uploads, tokens, schemas, mode: responses.types, onError })
  const description = createOpenApiRoute({
    schemas: schemas.all,
    hasTokens: upload.auth !== 'none',
    hasRpc: upload.rpc,
    mode: responses.types,
  })
  const stalledMs = config.limits.stalled
  const kubo = upload.rpc
    ? [createKuboRoute({ uploads, retrieval, tokens, visit, version, stalledMs, clock, onError })]
    : []
  onClose(async () => {
    await through?.close()
    await uploads.close()
  })
  return { routes: [description, add, ...kubo], confirmation: through ? undefined : uploads.confirmation }
}
