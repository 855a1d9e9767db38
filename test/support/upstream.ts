// The programmable upstream: a correct trustless gateway over blocks in memory that misbehaves on command. It writes down
// what it was asked, and how many sockets it holds.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { createSecureServer, type Http2Stream } from 'node:http2'
import { createServer as createTlsServer } from 'node:https'
import type { AddressInfo, Server, Socket } from 'node:net'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import type { CID } from 'multiformats/cid'
import { listShards } from '../../src/content/dag/hamt.ts'
import { readFile } from '../../src/content/file.ts'
import { entityOf, parsePath, resolve } from '../../src/content/resolve.ts'
import { type Block, blockKey, isIdentity } from '../../src/core/cid.ts'
import { isFailure } from '../../src/core/failure.ts'
import { linksOf } from '../../src/ipld/block-links.ts'
import { readNode } from '../../src/ipld/unixfs.ts'
import { carOf, spoiled } from './car-faults.ts'
import type { Certificate } from './certificate.ts'
import type { BlockMap } from './fixtures.ts'
import { memorySession } from './memory-session.ts'

export type Fault =
  | { readonly kind: 'refuse' } // the socket is torn down
  | { readonly kind: 'silent' } // never answers
  | { readonly kind: 'slowFirstByte'; readonly ms: number }
  | { readonly kind: 'drip'; readonly bytes: number; readonly everyMs: number; readonly after?: number } // after so many bytes
  | { readonly kind: 'cut'; readonly after: number } // torn down after so many bytes of body
  | { readonly kind: 'stall'; readonly after: number } // silent after so many bytes of body
  | { readonly kind: 'pace'; readonly bytesPerSecond: number } // evenly, however much is asked for
  | { readonly kind: 'ignoresRanges' } // sends all of a file
  | { readonly kind: 'noCar'; readonly status: number } // single blocks only
  | { readonly kind: 'endsEarly'; readonly after: number } // says no length, and ends cleanly after so many bytes
  | { readonly kind: 'wrongLength' } // says more than it sends, and ends
  | { readonly kind: 'wrongBytes'; readonly block: number } // one byte of block n is another
  | { readonly kind: 'html' }
  | { readonly kind: 'redirect'; readonly to: string }
  | { readonly kind: 'moved'; readonly to: string } // redirects to the same path below that address, or below that path, where it is
  | { readonly kind: 'notFound' }
  | { readonly kind: 'throttle'; readonly retryAfter?: string }
  | { readonly kind: 'status'; readonly status: number; readonly body?: string; readonly retryAfter?: string }
  | { readonly kind: 'lacks'; readonly searchMs: number } // looks for so long for whatever it is asked for, and then says 504
  | { readonly kind: 'queues'; readonly atOnce: number; readonly ms: number } // works at so many at once, for so long each
  | { readonly kind: 'endless' }
  | { readonly kind: 'endlessHeaders' }
  | { readonly kind: 'gzipBomb' }
  | { readonly kind: 'wrongType'; readonly type: string }
  | { readonly kind: 'emptyCar' }
  | { readonly kind: 'skipBlock'; readonly block: number }
  | { readonly kind: 'foreignBlock'; readonly count?: number } // a block, or so many, that was not asked for, before the others
  | { readonly kind: 'backwards' } // the last block first
  | { readonly kind: 'repeats'; readonly times: number } // each block so many times

const paceMs = 20
const lateMs = 50

export type Seen = { readonly method: string; readonly url: string; readonly headers: IncomingMessage['headers'] }

export type UpstreamOptions = {
  readonly blocks: BlockMap
  /** IPNS records by the key in base36: what it has, whether or not it is true. */
  readonly records?: ReadonlyMap<string, Uint8Array>
  readonly delayMs?: number
  /** Works at so many requests at once, each for `delayMs`; the rest waits here, also when its client has left. */
  readonly atOnce?: number
  /** Looks for what it lacks for so long, and then says 504. */
  readonly searchMs?: number
  /** Serves finished files only, and knows no formats. */
  readonly plain?: boolean
  /** For localhost. Without `protocol` it speaks HTTP/1.1 over TLS alone. */
  readonly tls?: Certificate & { readonly protocol?: 'h2' | 'both' }
}

export interface ProgrammableUpstream {
  readonly url: string
  readonly blocks: BlockMap
  readonly records: Map<string, Uint8Array>
  readonly seen: Seen[]
  /** Requests for content; probes are not counted. */
  readonly asked: Seen[]
  fault: Fault | ((request: Seen) => Fault | undefined) | undefined
  delayMs: number
  searchMs: number
  /** The bandwidth that all bodies share, whatever else is wrong with them; undefined: no limit. */
  bytesPerSecond: number | undefined
  readonly sockets: number
  /** Sockets, or the streams in them where it speaks HTTP/2. */
  readonly inUse: number
  /** Sockets that were ever opened. */
  readonly opened: number
  /** The most requests that waited for the end of their answer at one time. */
  readonly maxAtOnce: number
  /** Bytes of body handed to sockets so far. */
  readonly sentBytes: number
  /** Tears down every open socket: the process behind it is gone. */
  kill(): void
  close(): Promise<void>
}

export async function startUpstream(options: UpstreamOptions): Promise<ProgrammableUpstream> {
  const { blocks } = options
  const records = new Map(options.records)
  const sockets = new Set<Socket>()
  const seen: Seen[] = []
  const bandwidth = { paidUntil: 0 }
  let sentBytes = 0
  let opened = 0
  let atOnce = 0
  let maxAtOnce = 0
  let timers: NodeJS.Timeout[] = []
  const later = (ms: number, action: () => void) => timers.push(setTimeout(action, ms))

  const streams = new Set<Http2Stream>()
  const listener = (request: IncomingMessage, response: ServerResponse) => {
    const entry = { method: request.method ?? '', url: request.url ?? '', headers: request.headers }
    seen.push(entry)
    maxAtOnce = Math.max(maxAtOnce, ++atOnce)
    response.once('close', () => atOnce--)
    const fault = typeof upstream.fault === 'function' ? upstream.fault(entry) : upstream.fault
    const begin = () => {
      answer(entry, response, fault).catch((error: unknown) => {
        if (response.headersSent) return void response.destroy()
        const isAbsent = isFailure(error, 'not-found') || isFailure(error, 'path-not-found')
        if (isAbsent) lacking(response, upstream.searchMs, String(error))
        else plainAnswer(response, 400, String(error))
      })
    }
    if (fault?.kind === 'queues') work(fault.ms, fault.atOnce, begin)
    else work(upstream.delayMs + (fault?.kind === 'slowFirstByte' ? fault.ms : 0), options.atOnce, begin)
  }
  const server = serverFor(options.tls, listener)
  server.on('stream', (stream: Http2Stream) => {
    streams.add(stream)
    stream.once('close', () => streams.delete(stream))
    stream.on('error', () => {})
    // A reset without an error leaves a stream open while it has bytes to send.
    stream.once('aborted', () => stream.destroy())
  })
  server.on('sessionError', () => {})

  const line: (() => void)[] = []
  let atWork = 0
  function work(ms: number, atOnce: number | undefined, begin: () => void): void {
    const run = () => {
      atWork++
      later(ms, () => {
        atWork--
        line.shift()?.()
        begin()
      })
    }
    if (atOnce === undefined) {
      if (ms > 0) later(ms, begin)
      else begin()
    } else if (atWork < atOnce) run()
    else line.push(run)
  }
  server.on('connection', (socket) => {
    opened++
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    socket.on('error', () => {})
  })

  function plainAnswer(
    response: ServerResponse,
    status: number,
    body = '',
    headers: Record<string, string> = {},
  ): void {
    response.writeHead(status, { 'content-type': 'text/plain', ...headers })
    response.end(body)
  }

  function lacking(response: ServerResponse, searchMs: number, why: string): void {
    if (searchMs === 0) plainAnswer(response, 404, why)
    else later(searchMs, () => plainAnswer(response, 504, 'context deadline exceeded'))
  }

  async function answer(entry: Seen, response: ServerResponse, fault: Fault | undefined): Promise<void> {
    switch (fault?.kind) {
      case 'refuse':
        return void response.destroy()
      case 'silent':
        return
      case 'html':
        return void response.writeHead(200, { 'content-type': 'text/html' }).end('<html>Please wait…</html>')
      case 'redirect':
        return void response.writeHead(302, { location: fault.to }).end()
      case 'moved': {
        const isThere = entry.url.startsWith(`${fault.to}/`)
        if (isThere) return answer({ ...entry, url: entry.url.slice(fault.to.length) }, response, undefined)
        return void response.writeHead(302, { location: fault.to + entry.url }).end()
      }
      case 'endlessHeaders':
        return endlessHeaders(response)
      case 'lacks':
        if (isProbe(entry)) break
        return lacking(response, fault.searchMs, 'it has nothing')
      case 'notFound':
        return plainAnswer(response, 404, 'block was not found')
      case 'throttle':
        return plainAnswer(response, 429, '', fault.retryAfter === undefined ? {} : { 'retry-after': fault.retryAfter })
      case 'status':
        return plainAnswer(
          response,
          fault.status,
          fault.body,
          fault.retryAfter === undefined ? {} : { 'retry-after': fault.retryAfter },
        )
      default: // the rest are faults of a body
    }
    const url = new URL(entry.url, 'http://upstream')
    const key = /^\/ipns\/([^/]+)$/.exec(url.pathname)?.[1]
    if (key !== undefined) return sendRecord(response, options.plain ? undefined : records.get(key), fault)
    const rest = url.pathname.replace(/^\/ipfs\//, '')
    const format = options.plain ? 'file' : (url.searchParams.get('format') ?? 'file')
    const type = {
      raw: 'application/vnd.ipld.raw',
      car: 'application/vnd.ipld.car; version=1',
      file: 'application/octet-stream',
    }[format]
    if (fault?.kind === 'noCar' && format === 'car') return plainAnswer(response, fault.status, 'no CAR here')
    const headers: Record<string, string> = {
      'content-type': fault?.kind === 'wrongType' ? fault.type : (type ?? 'text/plain'),
    }
    if (fault?.kind === 'endless') return endless(response, headers)
    if (fault?.kind === 'gzipBomb') return bomb(response, headers)
    if (fault?.kind === 'ignoresRanges') url.searchParams.delete('entity-bytes')
    const body = await bodyOf(rest, format, url.searchParams, fault)
    if (body.type) headers['content-type'] = body.type
    if (body.length !== undefined && fault?.kind !== 'endsEarly')
      headers['content-length'] = String(body.length + (fault?.kind === 'wrongLength' ? 10 : 0))
    response.writeHead(200, headers)
    if (entry.method === 'HEAD') return void response.end()
    await send(response, body.chunks, fault)
  }

  async function sendRecord(
    response: ServerResponse,
    record: Uint8Array | undefined,
    fault: Fault | undefined,
  ): Promise<void> {
    if (!record) return plainAnswer(response, 404, 'routing: not found')
    const type = fault?.kind === 'wrongType' ? fault.type : 'application/vnd.ipfs.ipns-record'
    if (fault?.kind === 'endless') return endless(response, { 'content-type': type })
    if (fault?.kind === 'gzipBomb') return bomb(response, { 'content-type': type })
    const bytes = fault?.kind === 'wrongBytes' ? spoiled(record) : record
    const length = bytes.byteLength + (fault?.kind === 'wrongLength' ? 10 : 0)
    response.writeHead(200, { 'content-type': type, 'content-length': String(length) })
    await send(response, [bytes], fault)
  }

  type Body = {
    readonly length?: number
    readonly type?: string
    readonly chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>
  }

  async function bodyOf(rest: string, format: string, query: URLSearchParams, fault: Fault | undefined): Promise<Body> {
    const session = memorySession(blocks)
    const path = parsePath(rest)
    if (format === 'raw') {
      const bytes = await session.get(path.cid)
      return { length: bytes.byteLength, chunks: [fault?.kind === 'wrongBytes' ? spoiled(bytes) : bytes] }
    }
    if (format === 'car') return { chunks: await begun(carOf(path.cid, carBlocks(blocks, rest, query), fault)) }
    const { entity } = await resolve(session, path)
    if (entity.kind === 'directory') return { type: 'text/html', chunks: [Buffer.from('<html>a listing</html>')] }
    return {
      length: entity.size ?? 0,
      chunks: fault?.kind === 'wrongBytes' ? [spoiled(entity.block)] : readFile(session, entity),
    }
  }

  async function send(response: ServerResponse, chunks: Body['chunks'], fault: Fault | undefined): Promise<void> {
    let sent = 0
    const pace = fault?.kind === 'pace' ? { paidUntil: performance.now() } : bandwidth
    const bytesPerSecond = fault?.kind === 'pace' ? fault.bytesPerSecond : upstream.bytesPerSecond
    const dripMs = fault?.kind === 'drip' ? fault.everyMs : undefined
    const pieces =
      fault?.kind === 'drip'
        ? sliced(chunks, fault.bytes, fault.after)
        : bytesPerSecond !== undefined
          ? sliced(chunks, Math.ceil((bytesPerSecond * paceMs) / 1000))
          : chunks
    for await (const chunk of pieces) {
      const isShort = fault?.kind === 'cut' || fault?.kind === 'stall' || fault?.kind === 'endsEarly'
      const room = isShort ? fault.after - sent : Number.POSITIVE_INFINITY
      const part = chunk.subarray(0, Math.max(0, room))
      sent += part.byteLength
      sentBytes += part.byteLength
      if (part.byteLength > 0 && !response.write(part)) await drained(response)
      if (response.destroyed) return
      if (part.byteLength < chunk.byteLength || room === chunk.byteLength) {
        if (fault?.kind === 'cut') {
          response.write('', () => response.destroy())
          return
        }
        if (fault?.kind === 'stall') return
        if (fault?.kind === 'endsEarly') return void response.end()
      }
      const isDripping = fault?.kind !== 'drip' || sent >= (fault.after ?? 0)
      if (bytesPerSecond !== undefined) {
        // A busy machine makes timers late: up to this much is made good.
        const now = performance.now()
        pace.paidUntil = Math.max(pace.paidUntil, now - lateMs) + (part.byteLength / bytesPerSecond) * 1000
        const aheadMs = pace.paidUntil - now
        if (aheadMs >= 1) await new Promise<void>((resolve) => later(aheadMs, resolve))
      }
      if (dripMs !== undefined && isDripping) await new Promise<void>((resolve) => later(dripMs, resolve))
    }
    if (fault?.kind === 'wrongLength') response.destroy()
    else response.end()
  }

  function endless(response: ServerResponse, headers: Record<string, string>): void {
    response.writeHead(200, headers)
    const chunk = new Uint8Array(64 * 1024)
    const more = () => {
      while (!response.destroyed && response.write(chunk)) sentBytes += chunk.byteLength
      if (!response.destroyed) response.once('drain', more)
    }
    more()
  }

  function endlessHeaders({ socket }: ServerResponse): void {
    const lines = `X-Filler: ${'a'.repeat(1000)}\r\n`.repeat(16)
    const more = () => {
      while (socket && !socket.destroyed && socket.write(lines)) sentBytes += lines.length
      if (!socket?.destroyed) socket?.once('drain', more)
    }
    socket?.write('HTTP/1.1 200 OK\r\n')
    more()
  }

  async function bomb(response: ServerResponse, headers: Record<string, string>): Promise<void> {
    const body = await bombBody()
    response.writeHead(200, { ...headers, 'content-encoding': 'gzip' }).end(body)
  }

  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const upstream: ProgrammableUpstream = {
    url: options.tls ? `https://localhost:${port}` : `http://127.0.0.1:${port}`,
    blocks,
    records,
    seen,
    get asked() {
      return seen.filter((entry) => !isProbe(entry))
    },
    fault: undefined,
    delayMs: options.delayMs ?? 0,
    searchMs: options.searchMs ?? 0,
    bytesPerSecond: undefined,
    get sockets() {
      return sockets.size
    },
    get inUse() {
      return options.tls?.protocol === undefined ? sockets.size : streams.size
    },
    get maxAtOnce() {
      return maxAtOnce
    },
    get opened() {
      return opened
    },
    get sentBytes() {
      return sentBytes
    },
    kill() {
      for (const socket of sockets) socket.destroy()
    },
    async close() {
      for (const timer of timers) clearTimeout(timer)
      timers = []
      const closed = new Promise<void>((resolve) => server.close(() => resolve()))
      for (const socket of sockets) socket.destroy()
      await closed
    },
  }
  return upstream
}

type Listener = (request: IncomingMessage, response: ServerResponse) => void

function serverFor(tls: UpstreamOptions['tls'], listener: Listener): Server {
  if (!tls) return createServer(listener)
  if (tls.protocol === undefined) return createTlsServer(tls, listener)
  // Its requests and responses do what those of HTTP/1.1 do, as far as they are used here.
  const server = createSecureServer({ ...tls, allowHTTP1: tls.protocol === 'both' }, listener as never)
  return server as unknown as Server
}

/** Once its first piece is there: what is absent is said with a status. */
async function begun(chunks: AsyncGenerator<Uint8Array>): Promise<AsyncIterable<Uint8Array>> {
  const { value, done } = await chunks.next()
  return (async function* () {
    if (done) return
    yield value
    yield* chunks
  })()
}

let packed: Promise<Buffer> | undefined

/** Made once: to pack it costs the machine more than the gateway, which does not unpack it. */
const bombBody = (): Promise<Buffer> => (packed ??= promisify(gzip)(new Uint8Array(64 * 1024 * 1024)))

/** It is for the empty block, or for a CAR of it. */
const isProbe = ({ url }: Seen): boolean => url.includes('bafkqaaa')

/** What a correct gateway puts into a CAR: the blocks of the path, then those of the entity that the range needs. */
async function* carBlocks(blocks: BlockMap, rest: string, query: URLSearchParams): AsyncGenerator<Block> {
  const session = memorySession(blocks)
  const seenKeys = new Set<string>()
  const path = parsePath(rest)
  // The blocks that lead to a link that is not there prove that.
  const entity = await resolve(session, path).then(
    (resolved) => resolved.entity,
    (error: unknown) => {
      if (!isFailure(error, 'path-not-found')) throw error
    },
  )
  const fresh = (block: Block): boolean => {
    const key = blockKey(block.cid)
    if (seenKeys.has(key) || isIdentity(block.cid)) return false
    seenKeys.add(key)
    return true
  }
  for (const { cid } of [...session.asked]) {
    const block = { cid, bytes: await session.get(cid) }
    if (fresh(block)) yield block
  }
  const scope = query.get('dag-scope') ?? 'all'
  if (!entity || scope === 'block') return
  async function* walk(cid: CID): AsyncGenerator<Block> {
    const block = { cid, bytes: await session.get(cid) }
    yield block
    for (const link of linksOf(block)) yield* walk(link)
  }
  if (scope === 'all' || entity.kind === 'data') {
    if (scope === 'all') for await (const block of walk(entity.cid)) if (fresh(block)) yield block
    return
  }
  if (entity.kind === 'directory') {
    if (readNode(entity.cid, entity.block).unixfs?.type !== 'hamt-sharded-directory') return
    const shards = memorySession(blocks)
    for await (const _link of listShards(
      shards,
      { cid: entity.cid, bytes: entity.block },
      { cid: entity.cid, segments: [], scope: 'entity' },
    ));
    for (const { cid } of shards.asked) {
      const block = { cid, bytes: await session.get(cid) }
      if (fresh(block)) yield block
    }
    return
  }
  if (entity.kind !== 'file') return
  const [from, to] = (query.get('entity-bytes') ?? '0:*').split(':')
  const reading = memorySession(blocks)
  const first = Number(from)
  const end = to === '*' || to === undefined ? (entity.size ?? 0) : Number(to) + 1
  let told = 0
  const untold = async function* () {
    for (; told < reading.asked.length; told++) {
      const { cid } = reading.asked[told] as { cid: CID }
      const block = { cid, bytes: await session.get(cid) }
      if (fresh(block)) yield block
    }
  }
  const root = entityOf(entity.cid, entity.block)
  for await (const _piece of readFile(reading, root, first, end)) yield* untold()
  yield* untold()
}

async function* sliced(
  chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  size: number,
  after = 0,
): AsyncGenerator<Uint8Array> {
  let left = after
  for await (const chunk of chunks) {
    const whole = Math.min(left, chunk.byteLength)
    left -= whole
    if (whole > 0) yield chunk.subarray(0, whole)
    for (let at = whole; at < chunk.byteLength; at += size) yield chunk.subarray(at, at + size)
  }
}

function drained(response: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      response.off('drain', done)
      response.off('close', done)
      resolve()
    }
    response.on('drain', done)
    response.on('close', done)
  })
}
