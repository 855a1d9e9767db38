// A strict parser for the common form of requests. It never rejects: everything outside its grammar
// is left to `node:http`.
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import type { RequestHead } from '../http/wire/request.ts'

/** The header fields of a request. A client on a kept connection sends the same ones repeatedly. */
export type Fields = {
  readonly text: string
  readonly headers: IncomingHttpHeaders
  readonly rawHeaders: string[]
  /** True if no field is repeated. */
  readonly isEachOnce: boolean
  /** The length of the body, or chunked; undefined if only `node:http` can tell. */
  readonly body: number | 'chunked' | undefined
  /** The value of Connection; undefined if absent. */
  readonly connection: 'close' | 'keep-alive' | 'other' | undefined
}

type ReadHead = {
  readonly method: string
  readonly url: string
  readonly isOld: boolean
  readonly fields: Fields
}

const requestLine = /^([A-Z]{3,16}) ([\x21-\x7e]+) HTTP\/1\.([01])\r\n/
const field = /([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([\t\x20-\x7e\x80-\xff]*)\r\n/y

/**
 * `text`: up to and including the empty line. `known`: the fields of the previous request.
 * Undefined if outside of the grammar.
 */
export function readHead(text: string, known: Fields | undefined): ReadHead | undefined {
  const [line, method, url, minor] = requestLine.exec(text) ?? []
  if (line === undefined || method === undefined || url === undefined || method === 'CONNECT') return undefined
  const isSame = known !== undefined && text.length - line.length === known.text.length && text.endsWith(known.text)
  const fields = isSame ? known : readFields(text.slice(line.length))
  return fields && { method, url, isOld: minor === '0', fields }
}

function readFields(text: string): Fields | undefined {
  const rawHeaders: string[] = []
  const headers: Record<string, string> = Object.create(null)
  let isEachOnce = true
  let at = 0
  while (at < text.length - 2) {
    field.lastIndex = at
    const [line, name, value] = field.exec(text) ?? []
    if (line === undefined || name === undefined || value === undefined) return undefined
    const lower = name.toLowerCase()
    const bare = trimmed(value)
    if (lower in headers) isEachOnce = false
    rawHeaders.push(name, bare)
    headers[lower] = bare
    at += line.length
  }
  const { connection } = headers
  return {
    text,
    headers,
    rawHeaders,
    isEachOnce,
    body: bodyOf(headers, rawHeaders),
    connection: connection === undefined ? undefined : connectionOf(connection),
  }
}

const trimmed = (value: string): string => value.replace(/^[\t ]+|[\t ]+$/g, '')

function connectionOf(value: string): Fields['connection'] {
  const lower = value.toLowerCase()
  return lower === 'close' || lower === 'keep-alive' ? lower : 'other'
}

const ofFraming: ReadonlySet<string> = new Set([
  'content-length',
  'transfer-encoding',
  'connection',
  'upgrade',
  'expect',
])

function bodyOf(headers: IncomingHttpHeaders, rawHeaders: readonly string[]): Fields['body'] {
  const found = rawHeaders.filter((name, at) => at % 2 === 0 && ofFraming.has(name.toLowerCase()))
  const names = new Set(found.map((name) => name.toLowerCase()))
  if (names.size < found.length || names.has('upgrade')) return undefined
  const { 'content-length': length, 'transfer-encoding': coding } = headers
  if (coding !== undefined) return length === undefined && coding.toLowerCase() === 'chunked' ? 'chunked' : undefined
  if (length === undefined) return 0
  return /^\d{1,15}$/.test(length) ? Number(length) : undefined
}

/** A request that the front answers itself, in the form for handlers. */
export const asRequest = (
  { method, url, fields: { headers, rawHeaders } }: ReadHead,
  socket: IncomingMessage['socket'],
): RequestHead => ({ method, url, headers, rawHeaders, socket })

/** Finds the end of a body that is passed through. */
export interface PassedBody {
  /** The index after the last byte of the body in this piece, searching from `at`. */
  endIn(piece: Uint8Array, at: number): number
  readonly state: 'open' | 'over' | 'unknown'
}

export function passedBody(size: number | 'chunked'): PassedBody {
  return size === 'chunked' ? new ChunkedBody() : new SizedBody(size)
}

class SizedBody implements PassedBody {
  left: number

  constructor(size: number) {
    this.left = size
  }

  get state(): PassedBody['state'] {
    return this.left === 0 ? 'over' : 'open'
  }

  endIn(piece: Uint8Array, at: number): number {
    const bytes = Math.min(this.left, piece.byteLength - at)
    this.left -= bytes
    return at + bytes
  }
}

const lineFeed = 10

/** Plain chunks; extensions and trailers are left to `node:http`. */
class ChunkedBody implements PassedBody {
  state: PassedBody['state'] = 'open'
  #line = ''
  /** Remaining bytes of the chunk; undefined while its size is read. */
  #left: number | undefined
  #isLast = false

  endIn(piece: Uint8Array, from: number): number {
    let at = from
    while (at < piece.byteLength && this.state === 'open') {
      if (this.#left) {
        const bytes = Math.min(this.#left, piece.byteLength - at)
        this.#left -= bytes
        at += bytes
        continue
      }
      const byte = piece[at++] as number
      this.#line += String.fromCharCode(byte)
      if (byte === lineFeed) this.#endLine()
      else if (this.#line.length > 16) this.state = 'unknown'
    }
    return this.state === 'unknown' ? piece.byteLength : at
  }

  #endLine(): void {
    const line = this.#line
    this.#line = ''
    // The end of a chunk, including the last, empty one.
    if (this.#isLast || this.#left === 0) {
      if (line !== '\r\n') this.state = 'unknown'
      else if (this.#isLast) this.state = 'over'
      this.#left = undefined
      return
    }
    const [, size] = /^([0-9a-fA-F]{1,8})\r\n$/.exec(line) ?? []
    if (size === undefined) this.state = 'unknown'
    else this.#left = Number.parseInt(size, 16)
    if (this.#left === 0) this.#isLast = true
  }
}
