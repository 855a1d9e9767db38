// A bucket with the wire shapes of S3, path style, and the ways in which real stores differ or fail, on command. It looks
// at who signed, not at the signature.
import { createHash } from 'node:crypto'
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import { listen, type StoreServer } from './store-server.ts'

export type S3Faults = {
  /** Every answer is this late. */
  slowMs?: number
  /** Every answer is 503 SlowDown. */
  slowDown?: boolean
  /** 403 instead of 404, as without s3:ListBucket. */
  missing403?: boolean
  /** 501 for a request with any checksum header. */
  noChecksums?: boolean
  /** What becomes of If-None-Match and If-Match: honoured, not looked at, or 501. */
  conditional?: 'honoured' | 'ignored' | 'not-implemented'
  /** 200, and nothing is stored. */
  losesWrites?: boolean
  /** Headers and half of the body, then nothing. */
  stallsBody?: boolean
  /** So many answers with a body break off half way. */
  cutsBodies?: number
  /** So many bytes of the body at a time, and so long between them. */
  drips?: { readonly bytes: number; readonly everyMs: number }
  /** 500, and that only after so long. */
  failsAfterMs?: number
  /** Requests of this kind are read and never answered. */
  hangs?: 'GET' | 'PUT'
  /** Every request is 403 with this code. */
  denies?: 'InvalidAccessKeyId' | 'SignatureDoesNotMatch'
}

export type S3Request = {
  readonly method: string
  readonly key: string
  readonly status: number
  readonly headers: IncomingHttpHeaders
}

export type S3Server = StoreServer & {
  readonly endpoint: string
  readonly bucket: string
  readonly accessKeyId: string
  readonly secretAccessKey: string
  readonly objects: Map<string, Buffer>
  readonly requests: S3Request[]
  /** Requests that came, answered or not, by method. */
  readonly asked: Map<string, number>
  /** The most that waited for an answer at one time. */
  readonly maxAtOnce: number
  faults: S3Faults
}

const etags = new WeakMap<Buffer, string>()

/** Made once for each object: a store does not take our processor for it either. */
function etagOf(bytes: Buffer): string {
  const known = etags.get(bytes)
  if (known !== undefined) return known
  const etag = `"${createHash('md5').update(bytes).digest('hex')}"`
  etags.set(bytes, etag)
  return etag
}

export async function startS3Server(): Promise<S3Server> {
  const bucket = 'blocks'
  const accessKeyId = 'stand-in'
  const objects = new Map<string, Buffer>()
  const requests: S3Request[] = []
  const asked = new Map<string, number>()
  let waiting = 0
  let maxAtOnce = 0

  const answer = (request: IncomingMessage, response: ServerResponse, body: Buffer): void => {
    const { faults } = self
    const url = new URL(request.url ?? '/', 'http://store')
    const [, name, ...rest] = decodeURIComponent(url.pathname).split('/')
    const key = rest.join('/')
    const { method = '' } = request
    const send = (status: number, content: Buffer = Buffer.alloc(0), headers: Record<string, string> = {}) => {
      requests.push({ method, key, status, headers: request.headers })
      response.writeHead(status, { 'Content-Length': String(content.byteLength), ETag: etagOf(content), ...headers })
      if (faults.stallsBody && method === 'GET') response.write(content.subarray(0, content.byteLength >> 1))
      else if (faults.cutsBodies && method === 'GET') {
        faults.cutsBodies--
        response.write(content.subarray(0, content.byteLength >> 1), () => response.destroy())
      } else if (faults.drips && method === 'GET') drip(response, content, faults.drips)
      else response.end(method === 'HEAD' ? undefined : content)
    }
    const fail = (status: number, code: string) => {
      const xml = `<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>${code}</Code><Message>${code}</Message></Error>`
      send(status, method === 'HEAD' ? undefined : Buffer.from(xml), { 'Content-Type': 'application/xml' })
    }
    if (faults.slowDown) return fail(503, 'SlowDown')
    if (faults.failsAfterMs !== undefined) return fail(500, 'InternalError')
    if (faults.denies !== undefined) return fail(403, faults.denies)
    if (!request.headers.authorization?.includes(`Credential=${accessKeyId}/`)) return fail(403, 'InvalidAccessKeyId')
    const hasChecksum = Object.keys(request.headers).some((header) => /^x-amz-(sdk-)?checksum/.test(header))
    if (faults.noChecksums && hasChecksum) return fail(501, 'NotImplemented')
    if (name !== bucket) return fail(404, 'NoSuchBucket')
    const held = objects.get(key)
    if (method === 'PUT') {
      const { conditional = 'honoured' } = faults
      const [absent, match] = [request.headers['if-none-match'], request.headers['if-match']]
      if (absent !== undefined || match !== undefined) {
        if (conditional === 'not-implemented') return fail(501, 'NotImplemented')
        if (conditional !== 'ignored' && absent !== undefined && held) return fail(412, 'PreconditionFailed')
        if (conditional !== 'ignored' && match !== undefined && !held) return fail(404, 'NoSuchKey')
        if (conditional !== 'ignored' && match !== undefined && held && match !== etagOf(held))
          return fail(412, 'PreconditionFailed')
      }
      if (!faults.losesWrites) objects.set(key, body)
      return send(200)
    }
    if (method === 'DELETE') {
      objects.delete(key)
      return send(204)
    }
    if (held) return send(200, held, { 'Content-Type': 'application/octet-stream' })
    if (faults.missing403) return fail(403, 'AccessDenied')
    return fail(404, 'NoSuchKey')
  }

  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    const { method = '' } = request
    asked.set(method, (asked.get(method) ?? 0) + 1)
    waiting++
    maxAtOnce = Math.max(maxAtOnce, waiting)
    response.once('close', () => waiting--)
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', () => {
      if (!self.hears(request.socket) || self.faults.hangs === method) return
      const lateMs = self.faults.failsAfterMs ?? self.faults.slowMs
      if (lateMs === undefined) return answer(request, response, Buffer.concat(chunks))
      setTimeout(() => answer(request, response, Buffer.concat(chunks)), lateMs).unref()
    })
  })
  const base = await listen(server)
  const self: S3Server = Object.defineProperties(
    {
      endpoint: `http://127.0.0.1:${base.port}`,
      bucket,
      accessKeyId,
      secretAccessKey: 'stand-in-secret',
      objects,
      requests,
      asked,
      get maxAtOnce() {
        return maxAtOnce
      },
      faults: {},
    },
    Object.getOwnPropertyDescriptors(base),
  ) as S3Server
  return self
}

function drip(response: ServerResponse, content: Buffer, { bytes, everyMs }: NonNullable<S3Faults['drips']>): void {
  let at = 0
  const timer = setInterval(() => {
    response.write(content.subarray(at, at + bytes))
    at += bytes
    if (at >= content.byteLength) response.end()
  }, everyMs).unref()
  response.once('close', () => clearInterval(timer))
}
