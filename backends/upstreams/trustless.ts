// A trustless gateway: single blocks as raw bytes, DAGs as CAR (IPIP-402, IPIP-412). The default
// kind, and the only one that returns an entity in one response.
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { type Block, blockKey, maxBlockBytes } from '../../src/core/cid.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { CarParser } from '../../src/core/wire/car-stream.ts'
import { HttpRequest, wholeOf, wholeRequest } from './ask.ts'
import {
  type DagWant,
  firstPiece,
  isBlock,
  maxRecordBytes,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamContext,
  type UpstreamKind,
  type UpstreamRequest,
} from './contract.ts'
import { connected, contentUrl, contentUrls, emptyCid, gatewayOptions, probed, recordUrl } from './options.ts'

const options = z.strictObject(gatewayOptions)

const rawType = 'application/vnd.ipld.raw'
const carType = 'application/vnd.ipld.car'
const recordType = 'application/vnd.ipfs.ipns-record'

const failuresToBelieve = 3
/** Bounds the memory of aborted requests. */
const maxTorn = 64

/** Error codes of a connection, or of an HTTP/2 stream, that the peer or a middlebox ended. */
const tornDown: ReadonlySet<unknown> = new Set([
  'ECONNRESET',
  'EPIPE',
  'ERR_HTTP2_STREAM_ERROR',
  'UND_ERR_INFO',
  'UND_ERR_SOCKET',
])

export const trustless: UpstreamKind<typeof options> = {
  use: 'trustless',
  options,
  create: createTrustless,
}

function createTrustless(settings: z.output<typeof options>, context: UpstreamContext): Upstream {
  const { name } = context
  const { url } = settings
  const { close, question, headers } = connected(settings, context)
  const raw = { ...question, headers: headers(rawType), expects: rawType }
  const car = { ...question, headers: headers(`${carType}; version=1; order=dfs; dups=n`), expects: carType }
  const rawUrl = contentUrls(url, { format: 'raw' })
  let dag = true
  /**
   * CARs in a row that were refused, or reset before a block of them came although their root came
   * by itself.
   */
  let failedCars = 0
  /**
   * Roots of CARs that were reset: only a single block of the same root shows that the CAR was the
   * cause.
   */
  const torn = new Set<string>()

  function countFailedCar(): void {
    if (++failedCars >= failuresToBelieve) dag = false
  }

  function askBlock(cid: CID, answer: UpstreamAnswer): UpstreamRequest {
    return wholeRequest({ ...raw, url: rawUrl(cid), cid }, maxBlockBytes, {
      came({ bytes }) {
        if (torn.size > 0 && torn.delete(blockKey(cid))) countFailedCar()
        answer.came({ cid, bytes })
      },
      ended: () => answer.ended(),
      failed: (error) => answer.failed(error),
    })
  }

  function askDag(want: DagWant, answer: UpstreamAnswer): UpstreamRequest {
    const query = {
      format: 'car',
      'dag-scope': want.scope,
      ...entityBytes(want),
      'car-version': '1',
      'car-order': 'dfs',
      'car-dups': 'n',
    }
    const target = contentUrl(url, want.cid.toString(), want.segments, query)
    let hasBegun = false
    return new HttpRequest<Block>({ ...car, url: target }, new CarParser(), {
      came(block) {
        hasBegun = true
        failedCars = 0
        answer.came(block)
      },
      ended: () => answer.ended(),
      failed(error) {
        // One want may be refused for what it is; several in a row mean that CAR is not spoken
        // here.
        if (isFailure(error) && error.facts.refuses === 'format') countFailedCar()
        if (hasBegun || !isTearing(error)) return answer.failed(error)
        if (torn.size === maxTorn) torn.clear()
        torn.add(blockKey(want.cid))
        answer.failed(withoutCar(error))
      },
    })
  }

  return {
    name,
    traits: {
      get dag() {
        return dag
      },
      canBlock: () => true,
      connections: settings.maxConnections,
    },
    ask: (want, answer) => (isBlock(want) ? askBlock(want.cid, answer) : askDag(want, answer)),
    async record(key, signal) {
      const asked = { ...question, url: recordUrl(url, key), headers: headers(recordType), expects: recordType }
      return (await wholeOf(asked, maxRecordBytes, signal)).bytes
    },
    async probe(signal) {
      const want = { cid: emptyCid, segments: [], scope: 'block' } as const
      const report = await probed(
        context,
        async () => (await firstPiece<Block>((answer) => askBlock(emptyCid, answer), signal))?.bytes,
        async () => void (await firstPiece<Block>((answer) => askDag(want, answer), signal)),
      )
      dag = report.car
      failedCars = 0
      torn.clear()
      return report
    },
    close,
  }
}

const isTearing = (error: unknown): error is Failure =>
  isFailure(error, 'upstream-error') && tornDown.has((error.cause as { code?: unknown } | undefined)?.code)

/** The block may be available by itself: some gateways and proxies end each CAR like this. */
const withoutCar = ({ message, source, cause, retryAfterMs }: Failure): Failure =>
  new Failure('upstream-error', message, { source, cause, retryAfterMs, facts: { refuses: 'format' } })

function entityBytes({ scope, range }: DagWant): { 'entity-bytes'?: string } {
  if (!range || scope !== 'entity') return {}
  return { 'entity-bytes': `${range.from}:${range.to ?? '*'}` }
}
