// Services as providers meet them, with the shapes on the wire that the real ones have: one server, several APIs, and a
// script that may answer instead.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { CarReader } from '@ipld/car/reader'
import { CID } from 'multiformats/cid'
import { blockKey } from '../../src/core/cid.ts'
import { addFile, type BlockMap } from './fixtures.ts'

export type Call = {
  readonly method: string
  readonly path: string
  readonly query: URLSearchParams
  readonly headers: IncomingMessage['headers']
  readonly body: Buffer
}
export type Answer =
  | {
      status?: number
      json?: unknown
      text?: string
      bytes?: Uint8Array
      headers?: Record<string, string>
      trailer?: string
      chunked?: string[]
    }
  | 'cut'
  | 'silent'
export type Api = (call: Call, self: StandIn) => Answer | undefined | Promise<Answer | undefined>

export type StandIn = {
  readonly url: string
  readonly calls: Call[]
  readonly pins: Map<string, string>
  readonly names: Map<string, string>
  /** What it was given: what its gateway, or its own way to read, has. */
  readonly blocks: BlockMap
  /** Answers instead of the API while it gives something. */
  script: ((call: Call) => Answer | undefined) | undefined
  /** Tears the connection down behind so many bytes of a body: they have come, and there is no answer. */
  cutAfter: ((head: Omit<Call, 'body'>) => number | undefined) | undefined
  /** Says another CID than the one it was given. */
  otherCid: string | undefined
  readonly sockets: number
  close(): Promise<void>
}

export const token = 'a-secret-token'

export async function startStandIn(api: Api): Promise<StandIn> {
  const sockets = new Set<Socket>()
  const server = createServer((request, response) => {
    handle(request, response).catch(() => response.destroy())
  })
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.once('close', () => sockets.delete(socket))
  })
  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', 'http://service')
    const head = { method: request.method ?? '', path: url.pathname, query: url.searchParams, headers: request.headers }
    const most = self.cutAfter?.(head) ?? Number.POSITIVE_INFINITY
    const pieces: Buffer[] = []
    let came = 0
    for await (const piece of request as AsyncIterable<Buffer>) {
      pieces.push(piece.subarray(0, most - came))
      came += piece.byteLength
      if (came >= most) break
    }
    const call = { ...head, body: Buffer.concat(pieces) }
    self.calls.push(call)
    if (came >= most) return void request.socket.destroy()
    const answer = self.script?.(call) ?? (await api(call, self)) ?? { status: 404, json: { error: 'nothing here' } }
    if (answer === 'silent') return
    if (answer === 'cut') return void request.socket.destroy()
    const { status = 200, json, text, bytes, headers = {}, trailer, chunked } = answer
    const content = chunked ?? [bytes ?? (json === undefined ? (text ?? '') : JSON.stringify(json))]
    response.writeHead(status, {
      'content-type': json === undefined ? 'text/plain' : 'application/json',
      ...headers,
      ...(trailer !== undefined && { trailer: 'X-Stream-Error' }),
    })
    for (const piece of content) {
      if (call.method !== 'HEAD') response.write(piece)
      await new Promise((resolve) => setImmediate(resolve))
    }
    if (trailer !== undefined) response.addTrailers({ 'X-Stream-Error': trailer })
    response.end()
  }
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const self: StandIn = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls: [],
    pins: new Map(),
    names: new Map(),
    blocks: new Map(),
    script: undefined,
    cutAfter: undefined,
    otherCid: undefined,
    get sockets() {
      return sockets.size
    },
    async close() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()))
      for (const socket of sockets) socket.destroy()
      await closed
    },
  }
  return self
}

/** The parts of a multipart body by name. */
export function partsOf({ headers, body }: Call): Record<string, Buffer> {
  const boundary = /boundary=(.+)$/.exec(String(headers['content-type']))?.[1]
  const parts: Record<string, Buffer> = {}
  let at = body.indexOf(`--${boundary}`)
  for (;;) {
    const end = body.indexOf(`\r\n--${boundary}`, at + 1)
    if (at < 0 || end < 0) return parts
    const headEnd = body.indexOf('\r\n\r\n', at)
    const name = /name="([^"]+)"/.exec(body.toString('latin1', at, headEnd))?.[1] ?? ''
    parts[name] = body.subarray(headEnd + 4, end)
    at = end + 2
  }
}

export async function rootOf(car: Buffer, blocks: BlockMap): Promise<string> {
  const reader = await CarReader.fromBytes(car)
  // It has to be whole.
  for await (const { cid, bytes } of reader.blocks()) blocks.set(blockKey(CID.parse(String(cid))), bytes)
  return String((await reader.getRoots())[0])
}

const isBearer = ({ headers }: Call): boolean => headers.authorization === `Bearer ${token}`

export const kuboApi: Api = async (call, self) => {
  if (call.method !== 'POST') return { status: 405 }
  if (/mozilla/i.test(String(call.headers['user-agent'])) || call.headers.origin)
    return { status: 403, text: '403 - Forbidden' }
  if (!isBearer(call))
    return { status: 403, text: 'Kubo RPC Access Denied: Please provide a valid authorization token.' }
  const arg = call.query.get('arg') ?? ''
  switch (call.path.replace('/api/v0/', '')) {
    case 'version':
      return { json: { Version: '0.42.0' } }
    case 'dag/import': {
      const root = self.otherCid ?? (await rootOf(partsOf(call)['file'] as Buffer, self.blocks))
      self.pins.set(root, root)
      const line = `${JSON.stringify({ Root: { Cid: { '/': root }, PinErrorMsg: '' } })}\n`
      return { chunked: [line.slice(0, 20), line.slice(20)] }
    }
    case 'add': {
      const profile = call.query.get('cid-version') === '1' ? 'v1' : 'v0'
      // Whatever its name: Kubo takes every part for a file.
      const [file = Buffer.alloc(0)] = Object.values(partsOf(call))
      const cid = self.otherCid ?? String((await addFile(self.blocks, Uint8Array.from(file), profile)).cid)
      self.pins.set(cid, cid)
      self.names.set(cid, call.query.get('pin-name') ?? '')
      const line = `${JSON.stringify({ Name: 'file', Hash: cid, Size: '12' })}\n`
      return { chunked: [`${JSON.stringify({ Name: 'file', Bytes: 5 })}\n${line.slice(0, 9)}`, line.slice(9)] }
    }
    case 'block/get': {
      const bytes = self.blocks.get(blockKey(CID.parse(arg)))
      if (bytes) return { bytes }
      return { status: 500, json: { Message: 'block was not found locally (offline)', Code: 0, Type: 'error' } }
    }
    case 'pin/add':
      self.names.set(arg, call.query.get('name') ?? '')
      return { json: { Pins: [arg] } }
    case 'pin/rm':
      if (self.pins.delete(arg)) return { json: { Pins: [arg] } }
      return { status: 500, json: { Message: 'not pinned or pinned indirectly', Code: 0, Type: 'error' } }
    case 'pin/ls':
      if (self.pins.has(arg)) return { json: { Keys: { [arg]: { Type: 'recursive' } } } }
      return { status: 500, json: { Message: `path '${arg}' is not pinned`, Code: 0, Type: 'error' } }
    default:
      return { status: 404, text: '404 page not found' }
  }
}

export const clusterApi: Api = async (call, self) => {
  if (!isBearer(call)) return { status: 401, json: { code: 401, message: 'unauthorized' } }
  if (call.path.length > 1 && call.path.endsWith('/'))
    return { status: 307, headers: { location: call.path.slice(0, -1) } }
  const cid = call.path.split('/')[2] ?? ''
  if (call.path === '/id') return { json: { id: 'peer' } }
  if (call.path === '/add') {
    if (call.query.get('stream-channels') !== 'false' || call.query.get('format') !== 'car')
      return { status: 400, json: { code: 400, message: 'unexpected' } }
    const root = self.otherCid ?? (await rootOf(partsOf(call)['file'] as Buffer, self.blocks))
    self.pins.set(root, 'pin_queued')
    self.names.set(root, call.query.get('name') ?? '')
    return { json: [{ name: '', cid: root, size: 12, allocations: [] }], headers: { connection: 'close' } }
  }
  if (call.method === 'DELETE')
    return self.pins.delete(cid) ? { json: { cid } } : { status: 404, json: { code: 404, message: 'not found' } }
  if (call.path.startsWith('/allocations/'))
    return self.pins.has(cid) ? { json: { cid } } : { status: 404, json: { code: 404, message: 'not found' } }
  const status = self.pins.get(cid) ?? 'unpinned'
  if (status === 'pin_queued') self.pins.set(cid, 'pinned')
  return { json: { cid, peer_map: { a: { status }, b: { status: 'remote' } } } }
}

export const pinataApi: Api = async (call, self) => {
  if (!isBearer(call)) return { status: 401, json: { error: { message: 'Not Authorized', code: 401 } } }
  if (call.path === '/data/testAuthentication') return { json: { message: 'Congratulations!' } }
  if (call.path === '/v3/files' && call.headers['upload-length'])
    return { status: 201, headers: { location: `/v3/files/tus-${self.calls.indexOf(call)}` } }
  if (call.path.startsWith('/v3/files/tus-')) {
    const begun = Number(call.path.split('-').at(-1))
    const total = Number(self.calls[begun]?.headers['upload-length'])
    let gathered = Buffer.alloc(0)
    let isNext = false
    for (const { method, path, headers, body } of self.calls.slice(begun)) {
      if (method !== 'PATCH' || path !== call.path) continue
      isNext = Number(headers['upload-offset']) === gathered.length
      if (isNext) gathered = Buffer.concat([gathered, body])
    }
    if (call.method === 'HEAD') return { headers: { 'upload-offset': String(gathered.length) } }
    if (!isNext) return { status: 409, json: { error: 'offset' } }
    if (gathered.length < total) return { status: 204 }
    const root = self.otherCid ?? (await rootOf(gathered, self.blocks))
    self.pins.set(root, 'id-1')
    const metadata = String(self.calls[begun]?.headers['upload-metadata'])
    self.names.set(root, Buffer.from(/filename ([^,]+)/.exec(metadata)?.[1] ?? '', 'base64').toString())
    return { status: 204, headers: { 'upload-cid': root } }
  }
  if (call.path === '/v3/files') {
    const parts = partsOf(call)
    if (String(parts['car']) !== 'true') return { status: 400, json: { error: 'expected a CAR' } }
    const cid = self.otherCid ?? (await rootOf(parts['file'] as Buffer, self.blocks))
    const isDuplicate = self.pins.has(cid)
    self.pins.set(cid, 'id-1')
    self.names.set(cid, String(parts['name']))
    const network = parts['network'] ? String(parts['network']) : 'private'
    return { json: { data: { id: 'id-1', cid, network, ...(isDuplicate && { is_duplicate: true }) } } }
  }
  if (call.path === '/v3/files/public') {
    const cid = call.query.get('cid') ?? ''
    const id = self.pins.get(cid)
    return { json: { data: { files: id ? [{ id, cid }] : [], next_page_token: '' } } }
  }
  if (call.method === 'DELETE') {
    const id = call.path.split('/').at(-1)
    for (const [cid, known] of self.pins) if (known === id) self.pins.delete(cid)
    return { json: { data: null } }
  }
  return undefined
}

export const psaApi: Api = (call, self) => {
  if (!isBearer(call)) return { status: 401, json: { error: { reason: 'UNAUTHORIZED' } } }
  const [, , , id] = call.path.split('/')
  const show = (cid: string, status: string) => ({
    requestid: `r-${cid}`,
    status,
    created: '2026-01-01T00:00:00Z',
    pin: { cid: self.otherCid ?? cid },
  })
  if (call.method === 'POST') {
    const { cid, name = '' } = JSON.parse(call.body.toString()) as { cid: string; name?: string }
    self.pins.set(cid, 'queued')
    self.names.set(cid, name)
    return { status: 202, json: show(cid, 'queued') }
  }
  if (id && call.method === 'DELETE') return { status: self.pins.delete(id.slice(2)) ? 202 : 404, json: {} }
  if (id) {
    const cid = id.slice(2)
    self.pins.set(cid, 'pinned')
    return { json: show(cid, 'pinned') }
  }
  const cid = call.query.get('cid') ?? ''
  const status = self.pins.get(cid)
  const isListed = status && (call.query.get('status') ?? 'pinned').split(',').includes(status)
  return { json: { count: isListed ? 1 : 0, results: isListed ? [show(cid, status)] : [] } }
}

export const forwardApi: Api = async (call, self) => {
  if (call.path.startsWith('/ipfs/')) return { status: self.pins.has(call.path.split('/')[2] ?? '') ? 200 : 404 }
  if (!isBearer(call)) return { status: 401, json: { message: 'no token' } }
  const { data } = call.headers['content-type'] ? partsOf(call) : {}
  if (!data) return { status: 400, json: { message: 'no data' } }
  const cid = self.otherCid ?? String((await addFile(self.blocks, Uint8Array.from(data))).cid)
  self.pins.set(cid, cid)
  self.names.set(cid, call.query.get('name') ?? '')
  return { json: { cids: [`/ipfs/${cid}`] } }
}

export const filebaseApi: Api = async (call, self) => {
  const xml = (status: number, code: string): Answer => ({
    status,
    text: call.method === 'HEAD' ? '' : `<?xml version="1.0"?><Error><Code>${code}</Code></Error>`,
    headers: { 'content-type': 'application/xml' },
  })
  if (!call.headers.authorization?.includes(`Credential=${token}/`)) return xml(403, 'InvalidAccessKeyId')
  const key = call.path.split('/')[2]
  if (call.method === 'PUT') {
    if (call.headers['x-amz-meta-import'] !== 'car') return xml(400, 'InvalidRequest')
    self.pins.set(key ?? '', self.otherCid ?? (await rootOf(call.body, self.blocks)))
    return { headers: { etag: '"x"' } }
  }
  if (call.method === 'DELETE') {
    self.pins.delete(key ?? '')
    return { status: 204 }
  }
  if (!key) return {}
  const cid = self.pins.get(key)
  return cid === undefined ? xml(404, 'NoSuchKey') : { headers: cid === 'none' ? {} : { 'x-amz-meta-cid': cid } }
}
