// A trustless gateway: single blocks as raw bytes, DAGs as CAR (IPIP-402, IPIP-412). The default
// kind, and the only one that returns an entity in one response.
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { type Block, blockKey, isIdentity, maxBlockBytes, proves } from '../../src/core/cid.ts'
import { Failure, isFailure, isUnreachable } from '../../src/core/failure.ts'
import { ask, type UpstreamResponse } from './ask.ts'
import { CarAsk, pulledFrom } from './ask-car.ts'
import { asPlain, tooLarge, WholeAsk } from './ask-whole.ts'
import { createAgent } from './connect.ts'
import {
  type BlockAnswer,
  type DagAnswer,
  type DagAsk,
  type DagWant,
  maxRecordBytes,
  type ProbeReport,
  type Upstream,
  type UpstreamContext,
  type UpstreamKind,
} from './contract.ts'
import { contentUrl, contentUrls, gatewayOptions, recordUrl } from './options.ts'
import type { Redirects } from './redirects.ts'

const options = z.strictObject(gatewayOptions)

const rawType = 'application/vnd.ipld.raw'
const carType = 'application/vnd.ipld.car'
const recordType = 'application/vnd.ipfs.ipns-record'

const refusalsToBelieve = 3
/** Bounds the memory of aborted requests; the newest ones count. */
const maxTorn = 64

/** Error codes of a connection, or of an HTTP/2 stream, that the peer or a middlebox ended. */
const tornDown: ReadonlySet<unknown> = new Set([
  'ECONNRESET',
  'EPIPE',
  'ERR_HTTP2_STREAM_ERROR',
  'UND_ERR_INFO',
  'UND_ERR_SOCKET',
])

const carQuestion = 'CAR'

/** The empty identity CID: every trustless gateway has it, at no cost. */
const probeCid = CID.parse('bafkqaaa')

export const trustless: UpstreamKind<typeof options> = {
  use: 'trustless',
  options,
  create: createTrustless,
}

function createTrustless(
  settings: z.output<typeof options>,
  { name, userAgent, isFound, clock, trace }: UpstreamContext,
): Upstream {
  const { url, headers, firstByteTimeout, bodyTimeout } = settings
  const redirects: Redirects = isFound ? 'none' : settings.redirects
  const agent = createAgent({
    ...settings,
    connectMs: settings.connectTimeout,
    connections: settings.maxConnections,
    isFound,
    trace,
  })
  const rawUrl = contentUrls(url, { format: 'raw' })
  const rawHeaders = asPlain({ ...headers, accept: rawType, 'user-agent': userAgent })
  let dag = true
  let refusals = 0
  /**
   * Consecutive CARs that were reset before a block arrived, while single blocks arrived: the
   * upstream or a proxy does not support CAR.
   */
  let tears = 0
  /** Roots of recent failed CARs: a single block proves availability only if it is one of them. */
  const torn = new Set<string>()

  const get = (target: URL, accept: string, expects: string, signal: AbortSignal): Promise<UpstreamResponse> =>
    ask({
      name,
      url: target,
      headers: { ...headers, accept, 'user-agent': userAgent },
      expects,
      agent,
      redirects,
      signal,
      clock,
      firstByteMs: firstByteTimeout,
      idleMs: bodyTimeout,
    })

  function noteTorn(cid: CID): void {
    torn.add(blockKey(cid))
    for (const oldest of torn) if (torn.size > maxTorn) torn.delete(oldest)
  }

  /** What all questions have in common, and all questions for a block. */
  const common = { name, agent, clock, redirects, firstByteMs: firstByteTimeout, idleMs: bodyTimeout }
  const whole = { ...common, headers: rawHeaders, expects: rawType, maxBytes: maxBlockBytes }

  function askBlock(cid: CID, answer: BlockAnswer): () => void {
    const asked = new WholeAsk(
      { ...whole, url: rawUrl(cid) },
      {
        came(bytes, contentLength) {
          if (contentLength === undefined && !isIdentity(cid) && !proves(cid, bytes))
            return answer.failed(notAll(name, cid, bytes))
          if (torn.size > 0 && torn.delete(blockKey(cid)) && ++tears >= refusalsToBelieve) dag = false
          answer.came(bytes)
        },
        failed: (error) => answer.failed(error),
      },
    )
    return () => asked.stop()
  }

  function block(cid: CID, signal: AbortSignal): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason)
      const leave = () => {
        stop()
        reject(signal.reason)
      }
      const over = () => signal.removeEventListener('abort', leave)
      const stop = askBlock(cid, {
        came(bytes) {
          over()
          resolve(bytes)
        },
        failed(error) {
          over()
          reject(error)
        },
      })
      signal.addEventListener('abort', leave, { once: true })
    })
  }

  const carHeaders = asPlain({
    ...headers,
    accept: `${carType}; version=1; order=dfs; dups=n`,
    'user-agent': userAgent,
  })

  function askDag(want: DagWant, answer: DagAnswer): DagAsk {
    const query = {
      format: 'car',
      'dag-scope': want.scope,
      ...entityBytes(want),
      'car-version': '1',
      'car-order': 'dfs',
      'car-dups': 'n',
    }
    const target = contentUrl(url, want.cid.toString(), want.segments, query).href
    let hasBegun = false
    return new CarAsk(
      { ...common, url: target, headers: carHeaders, expects: carType },
      {
        begun() {
          refusals = 0
        },
        came(block) {
          hasBegun = true
          if (tears > 0) tears = 0
          answer.came(block)
        },
        ended: () => answer.ended(),
        failed(error) {
          // One want may be refused for what it is; several in a row mean that CAR is not spoken here.
          if (isFailure(error) && error.facts.refuses === 'format' && ++refusals >= refusalsToBelieve) dag = false
          if (hasBegun || !isTearing(error)) return answer.failed(error)
          noteTorn(want.cid)
          answer.failed(withoutCar(error))
        },
      },
    )
  }

  const dagBlocks = (want: DagWant, signal: AbortSignal): AsyncGenerator<Block> =>
    pulledFrom((answer) => askDag(want, answer), signal)

  return {
    name,
    traits: {
      get dag() {
        return dag
      },
      canBlock: () => true,
      connections: settings.maxConnections,
    },
    block,
    ask: askBlock,
    dag: dagBlocks,
    askDag,
    async record(key, signal) {
      return readBlock(name, await get(recordUrl(url, key), recordType, recordType, signal), maxRecordBytes)
    },
    async probe(signal) {
      const began = clock.monotonic()
      const findings: string[] = []
      let lied = false
      const raw = await finding(findings, 'raw blocks', async () => {
        const bytes = await block(probeCid, signal)
        lied = bytes.byteLength > 0
        if (lied) throw new Failure('hash-mismatch', 'it sent wrong bytes for the empty CID', { source: 'upstream' })
      })
      const car = await finding(findings, carQuestion, async () => {
        for await (const _block of dagBlocks({ cid: probeCid, segments: [], scope: 'block' }, signal)) break
      })
      dag = car
      refusals = 0
      tears = 0
      torn.clear()
      const report: ProbeReport = { usable: raw, raw, car, findings, ms: Math.round(clock.monotonic() - began) }
      return lied ? { ...report, lied } : report
    },
    close: () => agent.destroy(),
  }
}

const isTearing = (error: unknown): error is Failure =>
  isFailure(error, 'upstream-error') && tornDown.has((error.cause as { code?: unknown } | undefined)?.code)

/** The block may be available by itself: some gateways and proxies end each CAR like this. */
const withoutCar = ({ message, source, cause, retryAfterMs }: Failure): Failure =>
  new Failure('upstream-error', message, { source, cause, retryAfterMs, facts: { refuses: 'format' } })

/**
 * Runs one request of a probe. Rate limits, timeouts and 5xx say nothing about the abilities of the
 * upstream. Except for CAR: some upstreams without it respond with 5xx.
 */
export async function finding(findings: string[], what: string, question: () => Promise<void>): Promise<boolean> {
  try {
    await question()
    return true
  } catch (error) {
    if (isFailure(error, 'throttled') || isFailure(error, 'cancelled') || isFailure(error, 'timeout')) throw error
    if (isFailure(error) && (isUnreachable(error) || (what !== carQuestion && error.facts.isIll === true))) throw error
    findings.push(`${what}: ${error instanceof Error ? error.message : String(error)}`)
    return false
  }
}

function entityBytes({ scope, range }: DagWant): { 'entity-bytes'?: string } {
  if (!range || scope !== 'entity') return {}
  return { 'entity-bytes': `${range.from}:${range.to ?? '*'}` }
}

/**
 * Reads one block. Without a Content-Length a truncated response may look complete, so wrong bytes
 * do not count as a hash mismatch.
 */
export async function readOne(name: string, answer: UpstreamResponse, cid: CID): Promise<Uint8Array> {
  const bytes = await readBlock(name, answer)
  if (answer.contentLength !== undefined || isIdentity(cid) || proves(cid, bytes)) return bytes
  throw notAll(name, cid, bytes)
}

const notAll = (name: string, cid: CID, bytes: Uint8Array): Failure =>
  new Failure('upstream-error', `${name} sent ${bytes.byteLength} bytes that are not ${cid}, or not all of it`, {
    source: 'upstream',
  })

/** Reads the complete body within the size limit. */
export async function readBlock(
  name: string,
  answer: UpstreamResponse,
  mostBytes = maxBlockBytes,
): Promise<Uint8Array> {
  if (answer.contentLength !== undefined && answer.contentLength > mostBytes) {
    answer.stop()
    throw tooLarge(name, mostBytes)
  }
  const pieces: Uint8Array[] = []
  let bytes = 0
  for await (const piece of answer.chunks) {
    bytes += piece.byteLength
    if (bytes > mostBytes) throw tooLarge(name, mostBytes)
    pieces.push(piece)
  }
  if (answer.contentLength !== undefined && bytes !== answer.contentLength) {
    throw new Failure('upstream-error', `${name} sent ${bytes} of ${answer.contentLength} bytes`, {
      source: 'upstream',
    })
  }
  const [only] = pieces
  return pieces.length === 1 && only && only.buffer.byteLength === only.byteLength ? only : Buffer.concat(pieces)
}
