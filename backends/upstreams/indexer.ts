// An IPNI indexer over HTTP: receives announcements of a chain, and reports what it knows of a
// peer.
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import type { Clock } from '../../src/core/clock.ts'
import { asPlain, type HttpQuestion, wholeOf } from './ask.ts'
import { createAgent } from './connect.ts'
import { httpOptions, nothingIfAbsent } from './options.ts'

export const indexerOptions = z.strictObject({
  name: z.string().min(1).optional().describe('How it is called in the log. By default its host.'),
  url: httpOptions.url.describe('Where it is asked what it knows: /providers/<peer> is added to it.'),
  announce: httpOptions.url
    .optional()
    .describe('Its address for announcements, to which /announce is added. Default: `url`.'),
  allowPrivate: httpOptions.allowPrivate,
})

type IndexerOptions = z.output<typeof indexerOptions>

const connections = { connectTimeout: 3_000, maxConnections: 2 } as const
const timeoutMs = 60_000
const maxAnswerBytes = 256 * 1024

export function openIndexer(
  { url, announce: announceUrl = url, allowPrivate, ...rest }: IndexerOptions,
  { userAgent, clock }: { readonly userAgent: string; readonly clock: Clock },
) {
  const name = rest.name ?? new URL(url).host
  const finder = createAgent({ url, ...connections, allowPrivate })
  const taker = createAgent({ url: announceUrl, ...connections, allowPrivate })

  /** The signal of the caller ends it sooner. */
  async function call(
    base: string,
    path: string,
    more: Pick<HttpQuestion, 'agent' | 'headers'> & Partial<HttpQuestion>,
    signal: AbortSignal,
  ): Promise<string> {
    const question: HttpQuestion = {
      ...{ name, clock, expects: undefined, redirects: 'none', firstByteTimeout: timeoutMs, bodyTimeout: timeoutMs },
      ...more,
      url: `${base.replace(/\/+$/, '')}/${path}`,
      headers: asPlain({ ...more.headers, 'user-agent': userAgent }),
    }
    return Buffer.from((await wholeOf(question, maxAnswerBytes, signal)).bytes).toString('utf8')
  }

  /** Undefined: it has nothing there. */
  const get = (path: string, signal: AbortSignal): Promise<string | undefined> =>
    call(url, path, { agent: finder, headers: { accept: 'application/json' } }, signal).catch(nothingIfAbsent)

  return {
    name,
    async announce(body: Uint8Array, signal: AbortSignal): Promise<void> {
      const headers = { 'content-type': 'application/octet-stream' }
      await call(announceUrl, 'announce', { agent: taker, method: 'PUT', body, headers }, signal)
    },
    async provider(peerId: string, signal: AbortSignal) {
      const text = await get(`providers/${peerId}`, signal)
      if (text === undefined) return undefined
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
      return (await get(`cid/${cid.toV1()}`, signal))?.includes(JSON.stringify(peerId)) === true
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
