// Sources of denylists: a file, reloaded when its size or modification time changes, or a URL,
// revalidated by its ETag, whose last accepted copy is kept for a start while the URL is down. The
// operator sees a location without secrets, clients only a name.

import { createHash } from 'node:crypto'
import { readFile, rename, stat, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { request } from 'undici'
import { makeFolders } from '../core/disk/files.ts'
import type { Log } from '../core/log.ts'

/** A file or URL in the configuration. */
export type DenylistEntry =
  | string
  | {
      readonly url: string
      /** False lets the gateway start without the list while it is unavailable. */
      readonly required: boolean
      /** A file with an earlier text of the list, used at start if the URL fails. */
      readonly copy?: string | undefined
    }

export type ListText = {
  readonly text: string
  /** Called when the text was accepted as a list. */
  taken(): Promise<void>
}

export type DenylistSource = {
  /** The name shown to clients. */
  readonly name: string
  /** The location shown to the operator, without query or password. */
  readonly where: string
  readonly everyMs: number
  /** True if a text with neither a rule nor a header is not accepted as a list. */
  readonly isEmptyOdd: boolean
  /**
   * Returns the text, or undefined if it is unchanged. `anew`: also returns one that was rejected
   * before.
   */
  read(signal: AbortSignal, anew?: boolean): Promise<ListText | undefined>
  /** The last text that an earlier process accepted. */
  lastCopy(): Promise<string | undefined>
}

export const mostBytes = 512 * 1024 * 1024

/** The first line of an error's message; an AggregateError has only a code. */
export function whyOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.name === 'TimeoutError') return 'it timed out'
  const { code } = error as NodeJS.ErrnoException
  return error.message.split('\n', 1)[0] || code || error.name
}

const fileEveryMs = 2_000

export function fromFile(path: string): DenylistSource {
  let seen = ''
  const look = async (): Promise<{ size: number; state: string }> => {
    const { size, mtimeMs } = await stat(path)
    return { size, state: `${size} ${mtimeMs}` }
  }
  return {
    name: basename(path),
    where: path,
    everyMs: fileEveryMs,
    isEmptyOdd: false,
    async read(_signal, anew = false) {
      const { size, state } = await look()
      if (state === seen && !anew) return undefined
      if (size > mostBytes) throw new Error(`it is larger than ${mostBytes} bytes`)
      const text = await readFile(path, 'utf8')
      // Remember the state even of a rejected list, so that it is parsed again only after it
      // changes or on demand.
      seen = state
      return { text, async taken() {} }
    },
    lastCopy: async () => undefined,
  }
}

const urlEveryMs = 300_000
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
    everyMs: urlEveryMs,
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
