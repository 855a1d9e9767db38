// An IPNI indexer over HTTP: receives announcements of a chain, and reports what it knows of a
// peer.
import type { CID } from 'multiformats/cid'
import { request } from 'undici'
import { z } from 'zod'
import type { Clock } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
import { oneOf, parseRetryAfter } from '../../src/core/wire/http.ts'
import { createAgent } from './connect.ts'
import { httpOptions } from './options.ts'

export const indexerOptions = z.strictObject({
  name: z.string().min(1).optional().describe('How it is called in the log. By default its host.'),
  url: httpOptions.url.describe('Where it is asked what it knows: /providers/<peer> is added to it.'),
  announce: httpOptions.url
    .optional()
    .describe('Where it is told of the chain: /announce is added to it. By default `url`.'),
  allowPrivate: httpOptions.allowPrivate,
})

export type IndexerOptions = z.output<typeof indexerOptions>

const connections = { connectTimeout: 3_000, maxConnections: 2 } as const
const maxAnswerBytes = 256 * 1024

export function openIndexer(
  { url, announce: announceUrl = url, allowPrivate, ...rest }: IndexerOptions,
  { userAgent, clock }: { readonly userAgent: string; readonly clock: Clock },
) {
  const name = rest.name ?? new URL(url).host
  const finder = createAgent({ url, ...connections, allowPrivate })
  const taker = createAgent({ url: announceUrl, ...connections, allowPrivate })
  const at = (base: string, path: string) => new URL(`${base.replace(/\/+$/, '')}/${path}`)

  async function call(
    target: URL,
    dispatcher: typeof finder,
    how: {
      readonly method: 'GET' | 'PUT'
      readonly body?: Uint8Array
      readonly headers: Readonly<Record<string, string>>
    },
    signal: AbortSignal,
  ): Promise<{ readonly status: number; readonly text: string }> {
    try {
      const answer = await request(target, {
        ...how,
        headers: { 'user-agent': userAgent, ...how.headers },
        ...{ dispatcher, signal },
      })
      let text = ''
      for await (const chunk of answer.body) {
        text += String(chunk)
        if (text.length > maxAnswerBytes) {
          answer.body.destroy()
          throw new Failure('too-large', `${name} answered with more than ${maxAnswerBytes} bytes`, {
            source: 'upstream',
          })
        }
      }
      const { statusCode: status, headers } = answer
      if (status === 429 || status === 503) {
        const retryAfterMs = parseRetryAfter(oneOf(headers['retry-after']), clock.now())
        throw new Failure('throttled', `${name} answered with ${status}`, { source: 'upstream', retryAfterMs })
      }
      return { status, text }
    } catch (error) {
      if (error instanceof Failure) throw error
      const { code, message } = error as { code?: string; message?: string }
      throw new Failure('upstream-error', `${name} could not be asked (${code ?? message ?? 'no reason given'})`, {
        source: 'upstream',
        cause: error,
      })
    }
  }

  return {
    name,
    async announce(body: Uint8Array, signal: AbortSignal): Promise<void> {
      const headers = { 'content-type': 'application/octet-stream' }
      const { status, text } = await call(at(announceUrl, 'announce'), taker, { method: 'PUT', body, headers }, signal)
      if (status >= 200 && status < 300) return
      throw new Failure('refused', `${name} refused the announcement (${status}): ${text.slice(0, 200).trim()}`, {
        source: 'upstream',
      })
    },
    async provider(peerId: string, signal: AbortSignal) {
      const how = { method: 'GET', headers: { accept: 'application/json' } } as const
      const { status, text } = await call(at(url, `providers/${peerId}`), finder, how, signal)
      if (status === 404) return undefined
      if (status !== 200) throw new Failure('upstream-error', `${name} answered with ${status}`, { source: 'upstream' })
      const said = parsed(text)
      const last = (said['LastAdvertisement'] as { '/'?: unknown } | null | undefined)?.['/']
      const error = said['LastError']
      return {
        last: typeof last === 'string' ? last : undefined,
        error: typeof error === 'string' && error !== '' ? error.slice(0, 200) : undefined,
      }
    },
    /** True if it names this peer for the CID. */
    async finds(cid: CID, peerId: string, signal: AbortSignal): Promise<boolean> {
      const how = { method: 'GET', headers: { accept: 'application/json' } } as const
      const { status, text } = await call(at(url, `cid/${cid.toV1()}`), finder, how, signal)
      if (status !== 200 && status !== 404)
        throw new Failure('upstream-error', `${name} answered with ${status}`, { source: 'upstream' })
      return status === 200 && text.includes(JSON.stringify(peerId))
    },
    async close() {
      await Promise.all([finder.destroy(), taker.destroy()])
    },
  }
}

function parsed(text: string): Readonly<Record<string, unknown>> {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
  } catch {
    return {}
  }
}
