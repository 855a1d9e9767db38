// The operator's denylists, read from files and addresses and read again when they change. A list that cannot be read at
// start is an error; one that cannot be read later stays as it was.
import { readFile, stat } from 'node:fs/promises'
import { basename } from 'node:path'
import { request } from 'undici'
import type { Clock } from '../clock.ts'
import { cancelled, Failure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import { createDenylist, createDenylists, type Denylist, type Denylists } from './denylist.ts'

export interface LoadedDenylists extends Denylists {
  readonly rules: number
  close(): void
}

const fileEveryMs = 2_000
const urlEveryMs = 300_000
const fetchMs = 30_000
const mostBytes = 512 * 1024 * 1024

type Source = {
  readonly name: string
  readonly everyMs: number
  /** The text, or undefined while it is the same as before. */
  read(signal: AbortSignal): Promise<string | undefined>
}

export async function loadDenylists(
  sources: readonly string[],
  { clock, log, userAgent }: { readonly clock: Clock; readonly log: Log; readonly userAgent: string },
): Promise<LoadedDenylists> {
  const closing = new AbortController()
  const lists: Denylist[] = []

  async function read(source: Source, index: number): Promise<void> {
    const text = await source.read(closing.signal)
    if (text === undefined) return
    const list = createDenylist(source.name)
    for (const { line, what } of list.add(text)) log('warn', 'denylist.line', { list: source.name, line, what })
    lists[index] = list
    log('info', 'denylist.read', { list: source.name, rules: list.rules })
  }

  async function watch(source: Source, index: number): Promise<void> {
    for (;;) {
      await clock.sleep(source.everyMs, closing.signal)
      try {
        await read(source, index)
      } catch (error) {
        closing.signal.throwIfAborted()
        log('error', 'denylist.unread', {
          list: source.name,
          error: error instanceof Error ? error.message : String(error),
        })
      }
    }
  }

  const all = sources.map((source) => (/^https?:\/\//.test(source) ? fromUrl(source, userAgent) : fromFile(source)))
  await Promise.all(all.map(read))
  for (const [index, source] of all.entries()) watch(source, index).catch(() => {}) // ends when it is closed
  return {
    ...createDenylists(() => lists),
    get rules() {
      return lists.reduce((sum, { rules }) => sum + rules, 0)
    },
    close: () => closing.abort(cancelled('the gateway is closing')),
  }
}

function fromFile(path: string): Source {
  let seen = ''
  return {
    name: basename(path),
    everyMs: fileEveryMs,
    async read() {
      try {
        const { size, mtimeMs } = await stat(path)
        if (seen === `${size} ${mtimeMs}`) return undefined
        if (size > mostBytes) throw new Error(`it is larger than ${mostBytes} bytes`)
        const text = await readFile(path, 'utf8')
        seen = `${size} ${mtimeMs}`
        return text
      } catch (cause) {
        throw new Failure('broken', `the denylist ${path} cannot be read`, { source: 'ours', cause })
      }
    },
  }
}

function fromUrl(url: string, userAgent: string): Source {
  let etag: string | undefined
  return {
    name: new URL(url).host,
    everyMs: urlEveryMs,
    async read(signal) {
      try {
        const answer = await request(url, {
          headers: {
            'user-agent': userAgent,
            'accept-encoding': 'identity',
            ...(etag !== undefined && { 'if-none-match': etag }),
          },
          signal: AbortSignal.any([signal, AbortSignal.timeout(fetchMs)]),
        })
        if (answer.statusCode === 304) {
          await answer.body.dump()
          return undefined
        }
        if (answer.statusCode !== 200) {
          await answer.body.dump()
          throw new Error(`status ${answer.statusCode}`)
        }
        const pieces: Uint8Array[] = []
        let bytes = 0
        for await (const piece of answer.body as AsyncIterable<Uint8Array>) {
          bytes += piece.byteLength
          if (bytes > mostBytes) throw new Error(`it is larger than ${mostBytes} bytes`)
          pieces.push(piece)
        }
        etag = answer.headers['etag']?.toString()
        return Buffer.concat(pieces).toString('utf8')
      } catch (cause) {
        signal.throwIfAborted()
        throw new Failure('broken', `the denylist ${url} cannot be read`, { source: 'ours', cause })
      }
    },
  }
}
