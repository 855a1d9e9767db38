// A denylist at a URL, revalidated by its ETag. The last accepted copy is kept for a start while
// the URL is down.
import { createHash } from 'node:crypto'
import { readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { request } from 'undici'
import { makeFolders } from '../core/disk/files.ts'
import type { Log } from '../core/log.ts'
import { type DenylistSource, mostBytes, whyOf } from './source.ts'

const everyMs = 300_000
const fetchMs = 30_000

export type Fetching = {
  readonly userAgent: string
  readonly folder: string
  readonly log: Log
  /** A file that the operator provides for a first start while the URL is down. */
  readonly shipped: string | undefined
}

export function fromUrl(url: string, { userAgent, folder, log, shipped }: Fetching): DenylistSource {
  const { host, pathname } = new URL(url)
  const where = `${host}${pathname}`
  const copy = join(folder, `${createHash('sha256').update(url).digest('hex').slice(0, 32)}.deny`)
  let etag: string | undefined

  async function keep(text: string): Promise<void> {
    try {
      await makeFolders(folder)
      await writeFile(`${copy}.new`, text)
      await rename(`${copy}.new`, copy)
    } catch (error) {
      log('warn', 'denylist.save-failed', { list: where, error: whyOf(error) })
    }
  }

  return {
    name: host,
    where,
    everyMs,
    isEmptyOdd: true,
    async read(signal) {
      const { statusCode, headers, body } = await request(url, {
        headers: {
          'user-agent': userAgent,
          'accept-encoding': 'identity',
          ...(etag !== undefined && { 'if-none-match': etag }),
        },
        signal: AbortSignal.any([signal, AbortSignal.timeout(fetchMs)]),
      })
      if (statusCode !== 200) {
        await body.dump()
        if (statusCode === 304) return undefined
        throw new Error(`status ${statusCode}${statusCode < 400 ? ' (redirects are not followed)' : ''}`)
      }
      if (/^\s*text\/html\b/i.test(String(headers['content-type'] ?? ''))) {
        await body.dump()
        throw new Error('the answer is an HTML page')
      }
      const pieces: Uint8Array[] = []
      let bytes = 0
      for await (const piece of body as AsyncIterable<Uint8Array>) {
        bytes += piece.byteLength
        if (bytes > mostBytes) throw new Error(`it is larger than ${mostBytes} bytes`)
        pieces.push(piece)
      }
      const text = Buffer.concat(pieces).toString('utf8')
      return {
        text,
        async taken() {
          etag = headers['etag']?.toString()
          await keep(text)
        },
      }
    },
    lastCopy: () =>
      readFile(copy, 'utf8')
        .catch(() => (shipped === undefined ? undefined : readFile(shipped, 'utf8')))
        .catch(() => undefined),
  }
}
