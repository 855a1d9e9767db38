// A router (Delegated Routing V1): a server that names the providers of a CID, and stores records
// of names. It only speaks the protocol; src/routing parses and checks the answers.
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { type Clock, orAborted } from '../../src/core/clock.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { duration } from '../../src/core/units.ts'
import { oneOf } from '../../src/core/wire/http.ts'
import type { Trace } from '../../src/core/wire/trace.ts'
import { asPlain, type BodyParser, HttpRequest, wholeOf } from './ask.ts'
import { createAgent } from './connect.ts'
import { maxRecordBytes, toIterable } from './contract.ts'
import { httpOptions, keyText } from './options.ts'

const port = z.int().min(1).max(65_535)

export const routerOptions = z.strictObject({
  name: z.string().min(1).optional().describe('Its name in logs and responses. By default its host.'),
  url: httpOptions.url.describe('Its address; /routing/v1/providers/<cid> is added.'),
  headers: httpOptions.headers,
  timeout: duration().prefault('10s').describe('For one lookup, to its last byte.'),
  allowPrivate: z
    .boolean()
    .default(false)
    .describe('Whether it, and the gateways that it names, may be at private and loopback addresses.'),
  allowHttp: z
    .boolean()
    .default(false)
    .describe('Whether gateways that it names may be asked without TLS, on port 80.'),
  ports: z
    .union([z.literal('any'), z.array(port).min(1)], { error: 'expected any, or a list of ports' })
    .default([443])
    .describe('The ports at which gateways that it names may be asked.'),
})

export type RouterOptions = z.output<typeof routerOptions>

export interface RouterClient {
  readonly name: string
  /** Streams its answer. Rejects with `not-found` if it knows no provider. */
  providers(
    cid: CID,
    signal: AbortSignal,
  ): Promise<{ contentType: string | undefined; chunks: AsyncIterable<Uint8Array> }>
  /** Resolves with at most 10 KiB, an unverified record of this key. */
  record(key: CID, signal: AbortSignal): Promise<Uint8Array>
  close(): Promise<void>
}

const recordType = 'application/vnd.ipfs.ipns-record'
const connections = { connectTimeout: 3_000, maxConnections: 16 } as const

export function openRouter(
  { url, headers, timeout, allowPrivate, ...rest }: RouterOptions,
  {
    userAgent,
    clock,
    trace,
  }: { readonly userAgent: string; readonly clock: Clock; readonly trace?: Trace | undefined },
): RouterClient {
  const name = rest.name ?? new URL(url).host
  const agent = createAgent({ url, ...connections, allowPrivate, trace })
  const base = url.replace(/\/+$/, '').replace(/\/routing\/v1(\/providers)?$/, '')

  const questionOf = (path: string, accept: string, expects: string | undefined) => ({
    ...{ name, agent, clock, expects, firstByteTimeout: timeout, bodyTimeout: timeout, redirects: 'none' as const },
    url: `${base}/routing/v1/${path}`,
    headers: asPlain({ ...headers, accept, 'user-agent': userAgent }),
  })

  return {
    name,
    // Filters by both names: they occur in every usable address, even if a record names no
    // protocol.
    async providers(cid, signal) {
      const path = `providers/${cid.toV1()}?filter-addrs=http,https`
      const question = questionOf(path, 'application/x-ndjson, application/json;q=0.9', undefined)
      const begun = Promise.withResolvers<string | undefined>()
      const chunks = toIterable<Uint8Array>((answer) => {
        const failed = (error: unknown) => {
          begun.reject(error)
          answer.failed(error)
        }
        return new HttpRequest(question, chunksOf(begun.resolve), { ...answer, failed })
      }, signal)
      return { contentType: await orAborted(signal, begun.promise), chunks }
    },
    async record(key, signal) {
      try {
        const question = questionOf(`ipns/${keyText(key)}`, recordType, recordType)
        return (await wholeOf(question, maxRecordBytes, signal)).bytes
      } catch (error) {
        // A router without a record responds with another media type.
        if (!isFailure(error) || error.facts.refuses !== 'format') throw error
        throw new Failure('not-found', `${name} keeps no record of it`, { source: 'upstream', cause: error })
      }
    },
    close: () => agent.destroy(),
  }
}

/** A body parser that passes the chunks on. */
function chunksOf(begun: (contentType: string | undefined) => void): BodyParser<Uint8Array> {
  const chunks: Uint8Array[] = []
  return {
    begin: (headers) => begun(oneOf(headers['content-type'])),
    push: (chunk) => void chunks.push(chunk),
    next: () => chunks.shift(),
    end: () => undefined,
  }
}
