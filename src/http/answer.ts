// One GET or HEAD of content: from the request to the bytes. The order is that of the work saved: a path that is wrong
// costs nothing, a copy the client has costs no body, a range costs only its blocks.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Clock } from '../clock.ts'
import { listDirectory } from '../content/directory.ts'
import type { Entity, Resolution } from '../content/entity.ts'
import { readFile } from '../content/file.ts'
import { isJson, mayBeJson } from '../content/json.ts'
import { parsePath } from '../content/path.ts'
import { type ResolveOptions, resolve, symlinkTarget } from '../content/resolve.ts'
import { cancelled, Failure } from '../failure.ts'
import { type Account, createAccount } from '../observe/account.ts'
import type { Retrieval, Session } from '../retrieval/session.ts'
import { cacheStatus } from './cache-status.ts'
import { matches, rangeApplies } from './conditional.ts'
import { contentHeaders, disposition, etagOf } from './headers.ts'
import type { Hot } from './hot.ts'
import { negotiate } from './negotiate.ts'
import { asFailure, type Mode, sendProblem } from './problem.ts'
import { parseRange, type Range, rangeHint } from './range.ts'
import { hasBody, readTarget, type Target } from './target.ts'
import { reset, writeAll } from './write.ts'

export type AnswerDeps = {
  readonly retrieval: Retrieval
  readonly hot: Hot
  readonly clock: Clock
  readonly mode: Mode
  readonly jsonMaxBytes: number
  readonly stalledMs: number
  /** Throws a Failure `denied` for what an operator's list says no to. */
  readonly visit: NonNullable<ResolveOptions['visit']>
  /** Called when the request is over, however it ended. */
  readonly onEnd: (
    request: IncomingMessage,
    response: ServerResponse,
    account: Account,
    failure: Failure | undefined,
  ) => void
}

const listingCacheControl = 'public, max-age=604800, stale-while-revalidate=2678400'
const bufferedListingBytes = 256 * 1024

export async function answerContent(
  request: IncomingMessage,
  response: ServerResponse,
  deps: AnswerDeps,
): Promise<void> {
  const account = createAccount()
  const controller = new AbortController()
  const isHead = request.method === 'HEAD'
  let failure: Failure | undefined
  const onClose = () => {
    if (!response.writableFinished) controller.abort(cancelled())
  }
  response.once('close', onClose)
  let session: Session | undefined
  try {
    const target = readTarget(request)
    if (hasBody(request)) response.shouldKeepAlive = false
    const wants = cacheWishes(request.headers['cache-control'])
    session = deps.retrieval.session({ signal: controller.signal, account, ...wants })
    await new Answer(request, response, deps, target, session, account).send()
  } catch (error) {
    failure = asFailure(error)
    if (response.headersSent) reset(response)
    else if (failure.kind === 'cancelled' || response.destroyed) response.destroy()
    else sendProblem(response, failure, { mode: deps.mode, account, head: isHead, headers: rangeHeaders(failure) })
  } finally {
    session?.end()
    deps.onEnd(request, response, account, failure)
  }
}

function cacheWishes(header: string | undefined): { onlyIfCached: boolean; noCache: boolean } {
  const directives =
    header
      ?.toLowerCase()
      .split(',')
      .map((text) => text.trim()) ?? []
  return { onlyIfCached: directives.includes('only-if-cached'), noCache: directives.includes('no-cache') }
}

const rangeHeaders = ({ facts }: Failure): Record<string, string> =>
  typeof facts['size'] === 'number' ? { 'Content-Range': `bytes */${facts['size']}` } : {}

type Body = {
  readonly type: string
  readonly etag: string
  readonly cacheControl?: string
  /** Undefined: not known before it is made; then there are no ranges either. */
  readonly size: number | undefined
  /** All of it, when it is here already. */
  readonly whole?: Uint8Array | undefined
  /** Bytes `from` up to, not including, `to`. */
  readonly read: (from: number, to: number) => AsyncIterable<Uint8Array> | Iterable<Uint8Array>
}

/** One answer being made: what every step of it needs, in one place. */
class Answer {
  readonly #request: IncomingMessage
  readonly #response: ServerResponse
  readonly #deps: AnswerDeps
  readonly #target: Target
  readonly #session: Session
  readonly #account: Account

  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    deps: AnswerDeps,
    target: Target,
    session: Session,
    account: Account,
  ) {
    this.#request = request
    this.#response = response
    this.#deps = deps
    this.#target = target
    this.#session = session
    this.#account = account
  }

  async send(): Promise<void> {
    const { headers } = this.#request
    const { visit } = this.#deps
    const path = parsePath(this.#target.path.slice('/ipfs/'.length))
    const { as } = negotiate(this.#target.query, headers.accept)
    if (as !== 'file' && as !== 'json') {
      throw new Failure('unsupported', `this gateway does not answer with ${as}`, { source: 'client' })
    }
    const inm = headers['if-none-match']
    // The tag of a bare CID is known without a look at what it names.
    if (path.segments.length === 0 && inm !== undefined && inm.trim() !== '*' && matches(inm, etagOf(path.cid))) {
      visit(path.cid, [])
      const bare = { type: '', etag: etagOf(path.cid), size: undefined, read: () => [] }
      return this.#notModified(bare, { path, roots: [path.cid] })
    }
    const range = this.#request.method === 'GET' ? rangeHint(headers.range) : undefined
    const resolution = await resolve(this.#session, path, { range, visit })
    if (resolution.remainder.length > 0) {
      throw new Failure(
        'no-link',
        `${path.cid} is a document, and ${resolution.remainder.join('/')} in it is no link`,
        { source: 'content' },
      )
    }
    const body = await this.#bodyOf(resolution)
    if (matches(inm, body.etag)) return this.#notModified(body, resolution)
    await this.#deliver(body, resolution)
  }

  async #bodyOf({ entity, path }: Resolution): Promise<Body> {
    if (entity.kind === 'directory') return this.#listing(entity)
    if (entity.kind === 'symlink') return held(symlinkTarget(entity), 'application/octet-stream', etagOf(entity.cid))
    if (entity.kind === 'data') {
      return held(
        entity.block,
        isJson(entity.block) ? 'application/json' : 'application/octet-stream',
        etagOf(entity.cid),
      )
    }
    return this.#file(entity, path.segments.at(-1))
  }

  /** The type first, by as few bytes as it takes; the same answer whatever part of the file is asked for. */
  async #file(entity: Entity, lastName: string | undefined): Promise<Body> {
    const { hot, jsonMaxBytes } = this.#deps
    const size = entity.size ?? 0
    const etag = etagOf(entity.cid)
    const read = (from: number, to: number) => readFile(this.#session, entity, from, to)
    const octets = 'application/octet-stream'
    if (size > jsonMaxBytes) {
      const name = this.#target.query.get('filename') ?? lastName ?? ''
      return { type: /\.json$/i.test(name) ? 'application/json' : octets, etag, size, read }
    }
    if (size === 0) return held(new Uint8Array(), octets, etag)
    const pieces = read(0, size)[Symbol.asyncIterator]()
    const first = await pieces.next()
    const start = first.done ? new Uint8Array() : first.value
    const rest = { [Symbol.asyncIterator]: () => pieces }
    if (mayBeJson(start)) {
      const whole = await joined(start, rest)
      return held(whole, isJson(whole) ? 'application/json' : octets, etag)
    }
    if (size <= hot.maxItem) return held(await joined(start, rest), octets, etag)
    const begun = async function* () {
      yield start
      yield* rest
    }
    let isUsed = false
    return {
      type: octets,
      etag,
      size,
      read: (from, to) => {
        if (from > 0 || to < size || isUsed) {
          pieces.return(undefined).catch(() => {})
          return read(from, to)
        }
        isUsed = true
        return begun()
      },
    }
  }

  #listing(entity: Entity): Body {
    const { cid } = entity
    const session = this.#session
    const path = `/ipfs/${this.#target.path.slice('/ipfs/'.length)}`
    const read = async function* () {
      let text = `{"cid":"${cid}","path":${JSON.stringify(decodeQuietly(path))},"entries":[`
      let isFirst = true
      for await (const { name, cid: child, size, type } of listDirectory(session, entity)) {
        text += `${isFirst ? '' : ','}${JSON.stringify({ name, cid: child.toString(), size, type })}`
        isFirst = false
        if (text.length > 16_384) {
          yield Buffer.from(text)
          text = ''
        }
      }
      yield Buffer.from(`${text}]}\n`)
    }
    return {
      type: 'application/json',
      etag: `W/"${cid}.listing"`,
      cacheControl: listingCacheControl,
      size: undefined,
      read,
    }
  }

  #headers(body: Body, about: Pick<Resolution, 'roots'>): [string, string][] {
    const { query, path } = this.#target
    const filename = query.get('filename') ?? undefined
    const isDownload = query.get('download') === 'true'
    return [
      ...contentHeaders({
        etag: body.etag,
        type: body.type,
        path,
        roots: about.roots,
        acceptsRanges: body.size !== undefined,
        sandbox: true,
        ...(body.cacheControl !== undefined && { cacheControl: body.cacheControl }),
        disposition:
          isDownload || filename !== undefined
            ? disposition(isDownload ? 'attachment' : 'inline', filename)
            : undefined,
      }),
      ['Cache-Status', cacheStatus(this.#account)],
    ]
  }

  #notModified(body: Body, about: Pick<Resolution, 'roots' | 'path'>): void {
    this.#response.statusCode = 304
    for (const [name, value] of this.#headers(body, about))
      if (name !== 'Content-Type') this.#response.setHeader(name, value)
    this.#response.end()
  }

  async #deliver(body: Body, resolution: Resolution): Promise<void> {
    const response = this.#response
    const isHead = this.#request.method === 'HEAD'
    if (body.size === undefined) return this.#deliverUnsized(body, resolution)
    const range = this.#range(body, body.size)
    const [from, to] = range ? [range.from, range.to + 1] : [0, body.size]
    const headers = this.#headers(body, resolution)
    headers.push(['Content-Length', String(to - from)])
    if (range) headers.push(['Content-Range', `bytes ${range.from}-${range.to}/${body.size}`])
    this.#session.begun()
    if (!range && body.whole) this.#keepHot(headers, body.whole, body.etag)
    if (isHead) {
      response.writeHead(range ? 206 : 200, headers.flat())
      response.end()
      return
    }
    if (body.whole) {
      response.writeHead(range ? 206 : 200, headers.flat())
      response.end(body.whole.subarray(from, to))
      return
    }
    // The first piece is here before the headers go out: until then a failure is an error the client can read.
    const pieces = body.read(from, to)
    const iterator = (
      Symbol.asyncIterator in pieces ? pieces[Symbol.asyncIterator]() : pieces[Symbol.iterator]()
    ) as AsyncIterator<Uint8Array>
    const first = await iterator.next()
    response.writeHead(range ? 206 : 200, headers.flat())
    const all = async function* () {
      try {
        for (let next = first; !next.done; next = await iterator.next()) yield next.value
      } finally {
        await iterator.return?.()
      }
    }
    const written = await writeAll(response, all(), this.#deps)
    if (written !== to - from)
      throw new Failure('internal', `${written} bytes were written where ${to - from} were promised`, {
        source: 'ours',
      })
  }

  #range(body: Body, size: number): Range | undefined {
    const { headers, method } = this.#request
    if (method !== 'GET' && method !== 'HEAD') return undefined
    if (!rangeApplies(single(headers['if-range']), body.etag)) return undefined
    const range = parseRange(headers.range, size)
    if (range !== 'unsatisfiable') return range
    throw new Failure('malformed', `the range lies behind the end: there are ${size} bytes`, {
      source: 'client',
      facts: { status: 416, size },
    })
  }

  /** A small one with its length, a large one as it comes. */
  async #deliverUnsized(body: Body, resolution: Resolution): Promise<void> {
    const response = this.#response
    const iterator = body.read(0, 0) as AsyncGenerator<Uint8Array>
    const start: Uint8Array[] = []
    let bytes = 0
    let next = await iterator.next()
    for (; !next.done && bytes <= bufferedListingBytes; next = await iterator.next()) {
      start.push(next.value)
      bytes += next.value.byteLength
    }
    const headers = this.#headers(body, resolution)
    this.#session.begun()
    if (next.done) headers.push(['Content-Length', String(bytes)])
    response.writeHead(200, headers.flat())
    if (this.#request.method === 'HEAD') {
      await iterator.return(undefined)
      response.end()
      return
    }
    const behind = next
    await writeAll(
      response,
      (async function* () {
        yield* start
        if (behind.done) return
        yield behind.value
        yield* iterator
      })(),
      this.#deps,
    )
  }

  /** Only what the plain URL asks for: variants of the query could otherwise fill it with copies. */
  #keepHot(headers: readonly [string, string][], whole: Uint8Array, etag: string): void {
    const { hot } = this.#deps
    if (whole.byteLength > hot.maxItem || this.#target.search !== '') return
    const fixed = headers.map(([name, value]) => [name, name === 'Cache-Status' ? 'cidgate; hit; detail=hot' : value])
    hot.add(this.#request.url as string, { headers: fixed.flat(), body: Buffer.from(whole), etag })
  }
}

const single = (value: string | string[] | undefined): string | undefined => (Array.isArray(value) ? value[0] : value)

const held = (whole: Uint8Array, type: string, etag: string): Body => ({
  type,
  etag,
  size: whole.byteLength,
  whole,
  read: (from, to) => [whole.subarray(from, to)],
})

async function joined(first: Uint8Array, rest: AsyncIterable<Uint8Array>): Promise<Uint8Array> {
  const pieces = [first]
  for await (const piece of rest) pieces.push(piece)
  return pieces.length === 1 ? first : Buffer.concat(pieces)
}

function decodeQuietly(path: string): string {
  try {
    return decodeURIComponent(path)
  } catch {
    return path
  }
}
