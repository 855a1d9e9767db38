// The operator's denylists, read from files and addresses and read again when they change. A list that cannot be read at
// start is an error; one that cannot be read later stays as it was.
import { createHash } from 'node:crypto'
import { mkdir, readFile, rename, stat, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
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
  options: {
    readonly clock: Clock
    readonly log: Log
    readonly userAgent: string
    /** Keeps the last copy of each list that was fetched. */
    readonly folder: string
    /** A list was read anew: what was decided before may be wrong now. */
    readonly onChange: () => void
  },
): Promise<LoadedDenylists> {
  const { clock, log, userAgent, folder, onChange } = options
  const closing = new AbortController()
  const lists: Denylist[] = []

  async function read(source: Source, index: number): Promise<void> {
    const text = await source.read(closing.signal)
    if (text === undefined) return
    const list = createDenylist(source.name)
    for (const piece of pieces(text)) {
      for (const { line, what } of list.add(piece)) log('warn', 'denylist.line', { list: source.name, line, what })
      await setImmediate() // a large list must not hold up those who read
    }
    lists[index] = list
    log('info', 'denylist.read', { list: source.name, rules: list.rules })
    onChange()
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

  const all = sources.map((source) =>
    /^https?:\/\//.test(source) ? fromUrl(source, { userAgent, folder, log }) : fromFile(source),
  )
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

const headBytes = 1024 * 1024
const pieceBytes = 256 * 1024

/** Whole lines; the first piece is large enough for the header of a list. */
function* pieces(text: string): Generator<string> {
  for (let from = 0; from < text.length; ) {
    const end = text.indexOf('\n', from + (from === 0 ? headBytes : pieceBytes))
    const to = end === -1 ? text.length : end + 1
    yield text.slice(from, to)
    from = to
  }
}

type Fetching = { readonly userAgent: string; readonly folder: string; readonly log: Log }

function fromUrl(url: string, { userAgent, folder, log }: Fetching): Source {
  const name = new URL(url).host
  const copy = join(folder, `${createHash('sha256').update(url).digest('hex').slice(0, 32)}.deny`)
  let etag: string | undefined
  let isFirst = true

  /** At start an older list is better than none; without one the gateway does not start. */
  async function lastCopy(cause: unknown): Promise<string> {
    const text = await readFile(copy, 'utf8').catch(() => undefined)
    if (text === undefined) throw cause
    log('error', 'denylist.unread', { list: name, error: String(cause), instead: 'the copy of last time' })
    return text
  }

  async function keep(text: string): Promise<void> {
    try {
      await mkdir(folder, { recursive: true })
      await writeFile(`${copy}.new`, text)
      await rename(`${copy}.new`, copy)
    } catch (error) {
      log('warn', 'denylist.unkept', { list: name, error: String(error) })
    }
  }

  return {
    name,
    everyMs: urlEveryMs,
    async read(signal) {
      const first = isFirst
      isFirst = false
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
        const text = Buffer.concat(pieces).toString('utf8')
        await keep(text)
        return text
      } catch (cause) {
        signal.throwIfAborted()
        const failure = new Failure('broken', `the denylist ${url} cannot be read`, { source: 'ours', cause })
        if (first) return lastCopy(failure)
        throw failure
      }
    },
  }
}
