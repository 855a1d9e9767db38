// Parses a multipart body as it streams. It keeps parts named `data`, files and text alike, and skips the rest, within limits.
// It never waits for the complete body.
import type { IncomingMessage } from 'node:http'
import { TextDecoder } from 'node:util'
import type { Clock } from '../core/clock.ts'
import { cancelled, Failure, malformed } from '../core/failure.ts'
import { createUploadRate, type UploadSlot } from './admission.ts'

export type ReceiveLimits = {
  /** The maximum of all `data` parts together. */
  readonly maxBytes: number
  /** After this long without a byte the client counts as gone. */
  readonly idleMs: number
  /** Minimum of bytes a second on average, while the gateway was ready to read. 0: no limit. */
  readonly minRate: number
  /** The rate is not checked before this. */
  readonly graceMs: number
}

export type ReceiveOptions = ReceiveLimits & {
  readonly clock: Clock
  /** By default `data`. Of the others, parts may be empty, and text need not be UTF-8. */
  readonly parts?: KeptParts
  readonly maxParts?: number
  /** `take` has copied each piece by the time it asks for the next one, so that the memory of the piece may be freed. */
  readonly isCopied?: boolean
  /** Ends it from outside. */
  readonly signal?: AbortSignal
  /** Measures how fast the upload arrives, and may end it. */
  readonly slot?: Pick<UploadSlot, 'rate' | 'signal'> | undefined
  /** Counts the bytes of the parts; throws a Failure above their limit. */
  readonly count?: ((bytes: number) => void) | undefined
}

export type TakePart<T> = (bytes: AsyncIterable<Uint8Array>, signal: AbortSignal, part: PartName) => Promise<T>

export type PartName = {
  readonly fileName: string | undefined
  readonly type: string
  /** Its place in a directory, unchecked: undefined if parsers could read it in different ways. */
  readonly path: string | undefined
}

const defaultParts = 128
const maxHeaders = 20
const headerBytes = 16 * 1024
const tickMs = 500
const stuckMs = 60_000
/** Parts that are taken at once, and bytes that wait for that; the client waits where more have come. */
const maxOpen = 64
const maxQueuedBytes = 256 * 1024

/** Bytes that a body may have besides its data: boundaries, headers, other parts. */
export const aroundBytes = (maxParts = defaultParts): number => 64 * 1024 + Math.max(0, maxParts - defaultParts) * 1024

/**
 * Calls `take` for each `data` part, in order, with its bytes as they come; resolves with the results. When anything fails,
 * every part ends with that failure, and this rejects after the last `take` has settled. The request is then paused, not
 * destroyed, so that the client can still read the answer.
 */
export async function receive<T>(request: IncomingMessage, options: ReceiveOptions, take: TakePart<T>): Promise<T[]> {
  const { parts = 'data', maxParts = defaultParts, maxBytes, clock, idleMs, minRate, graceMs, slot } = options
  const every = parts === 'every'
  const rate = slot?.rate ?? createUploadRate(clock)
  const stop = new AbortController()
  const arrived = Promise.withResolvers<void>()
  const takes: Promise<T>[] = []
  const open = new Set<Part>()
  let current: Part | undefined
  let count = 0
  let queuedBytes = 0
  let dataBytes = 0
  let receivedBytes = 0
  /** The time of the last byte, or of the end of the last pause. */
  let since = clock.monotonic()
  let pausedAt: number | undefined

  const fail = (error: unknown): void => {
    if (stop.signal.aborted) return
    stop.abort(error)
    arrived.reject(error)
    for (const { wake } of open) wake()
  }

  async function* bytesOf(part: Part, isText: boolean): AsyncGenerator<Uint8Array> {
    const decoder = isText ? new TextDecoder('utf-8', { fatal: true }) : undefined
    let bytes = 0
    for (;;) {
      stop.signal.throwIfAborted()
      const piece = part.pieces.shift()
      if (!piece && part.isComplete) break
      if (!piece) {
        await new Promise<void>((resolve) => {
          part.wake = resolve
        })
        continue
      }
      bytes += piece.byteLength
      dataBytes += piece.byteLength
      if (dataBytes > maxBytes) throw tooLarge(maxBytes)
      options.count?.(piece.byteLength)
      decode(decoder, piece)
      const { byteLength } = piece
      yield piece
      if (options.isCopied) giveBack(piece)
      release(byteLength)
    }
    decode(decoder)
    if (bytes === 0 && parts === 'data') throw malformed('the part `data` is empty')
  }

  function onPart({ name, isFile, fileName, type, path }: PartHead): void {
    if (++count > maxParts) return fail(malformed(`more than ${maxParts} parts in one upload`))
    if (name !== 'data' && !every) return
    const part: Part = { pieces: [], isComplete: false, isOver: false, wake: () => {} }
    current = part
    open.add(part)
    const taken = take(bytesOf(part, !isFile && parts === 'data'), stop.signal, { fileName, type, path }).finally(
      () => {
        open.delete(part)
        part.isOver = true
        release(part.pieces.splice(0).reduce((sum, { byteLength }) => sum + byteLength, 0))
      },
    )
    taken.catch(fail)
    takes.push(taken)
  }

  const parser = createParser(boundaryOf(request.headers['content-type']), parts, {
    onPart,
    onBytes(piece) {
      if (!current || current.isOver) return
      queuedBytes += piece.byteLength
      current.pieces.push(piece)
      current.wake()
    },
    onPartEnd() {
      if (!current) return
      current.isComplete = true
      current.wake()
      current = undefined
    },
  })

  // The body is read as fast as its parts are taken. Waits that the gateway causes do not count as the client's.
  const isFull = (): boolean => queuedBytes >= maxQueuedBytes || open.size > maxOpen
  const stuck = (): Failure => {
    const why = `upload timed out: this gateway processed none of it for ${stuckMs} ms; send it again`
    return new Failure('upstream-error', why, { source: 'ours' })
  }

  function onData(chunk: Buffer): void {
    receivedBytes += chunk.byteLength
    rate.received(chunk.byteLength)
    since = clock.monotonic()
    if (receivedBytes > maxBytes + aroundBytes(maxParts)) return fail(tooLarge(maxBytes))
    const wrong = parser.write(chunk)
    if (wrong) return fail(wrong)
    if (!isFull()) return
    request.pause()
    rate.turn(false)
    pausedAt = since
  }

  function release(bytes: number): void {
    queuedBytes -= bytes
    if (pausedAt === undefined || isFull()) return
    pausedAt = undefined
    since = clock.monotonic()
    rate.turn(true)
    request.resume()
  }

  function onEnd(): void {
    rate.turn(false)
    cancelTick()
    cancelTick = clock.after(stuckMs, () => fail(stuck()))
    if (parser.isAtEnd()) arrived.resolve()
    else fail(malformed('the multipart body is broken or cut'))
  }

  function onGone(): void {
    if (!request.complete) fail(cancelled('the client left in the middle of its upload'))
  }

  function tick(): void {
    cancelTick = clock.after(tickMs, tick)
    const now = clock.monotonic()
    if (pausedAt !== undefined) {
      if (now - pausedAt > stuckMs) fail(stuck())
    } else if (idleMs > 0 && now - since > idleMs)
      fail(slow(`upload timed out: no data for ${idleMs} ms; send it again`))
    else if (rate.ms > graceMs && receivedBytes < (minRate * rate.ms) / 1000)
      fail(slow(`upload too slow: less than ${minRate} bytes a second; send it again over a faster connection`))
  }

  let cancelTick = clock.after(tickMs, tick)
  rate.turn(true)
  request.on('data', onData)
  request.on('end', onEnd)
  request.on('error', onGone)
  request.on('close', onGone)
  if (request.destroyed) onGone()
  const signals = [options.signal, slot?.signal].filter((signal) => signal !== undefined)
  const onAbort = () => fail(signals.find(({ aborted }) => aborted)?.reason)
  for (const signal of signals) signal.addEventListener('abort', onAbort, { once: true })
  if (signals.some(({ aborted }) => aborted)) onAbort()
  try {
    await arrived.promise
    const results = await Promise.all(takes)
    if (results.length === 0) throw malformed('there is no part named `data` in this upload')
    return results
  } catch (error) {
    fail(error)
    throw stop.signal.reason
  } finally {
    cancelTick()
    rate.turn(false)
    request.off('data', onData)
    request.off('end', onEnd)
    request.off('close', onGone)
    request.on('error', () => {})
    request.off('error', onGone)
    pausedAt = undefined
    request.pause()
    for (const signal of signals) signal.removeEventListener('abort', onAbort)
    await Promise.allSettled(takes)
  }
}

/** A part that is being taken. `wake` resumes its reader. */
type Part = { readonly pieces: Uint8Array[]; isComplete: boolean; isOver: boolean; wake: () => void }

/**
 * Frees what arrived as soon as it was copied into a block. Otherwise V8 marks the heap for every 64 MiB of
 * it: half of the processor time of a large upload. Only a piece that fills its buffer: no other part of the body is in that.
 */
function giveBack({ buffer, byteLength }: Uint8Array): void {
  if (buffer instanceof ArrayBuffer && buffer.byteLength === byteLength) buffer.transfer(0)
}

function decode(decoder: TextDecoder | undefined, piece?: Uint8Array): void {
  try {
    decoder?.decode(piece, { stream: piece !== undefined })
  } catch (error) {
    throw malformed('the text in `data` is not UTF-8; send other bytes as a file, with a file name', error)
  }
}

export const tooLarge = (maxBytes: number): Failure =>
  new Failure('too-large', `the upload is larger than the ${maxBytes} bytes that are allowed here (upload.maxBytes)`, {
    source: 'client',
  })

const slow = (why: string): Failure => new Failure('upload-too-slow', why, { source: 'client' })

// The multipart parser (RFC 7578). A part whose headers other parsers could read in another way is refused, so that no proxy or
// scanner in front takes an upload for something else.

const longestBoundary = 70
const boundaryForm = /^[0-9A-Za-z'()+_,./:=? -]*[0-9A-Za-z'()+_,./:=?-]$/

/** RFC 2046 §5.1.1: 1 to 70 characters of these, not ending in a space. */
export function boundaryOf(contentType: string | undefined): string {
  if (!/^multipart\/form-data\s*(;|$)/i.test(contentType ?? ''))
    throw malformed('an upload is multipart/form-data, with a part named `data`')
  const parameters = parametersOf(contentType ?? '')
  if (parameters === undefined)
    throw malformed('the Content-Type of an upload has each parameter once, in the form name=value')
  const boundary = parameters.get('boundary') ?? ''
  if (boundary.length === 0 || boundary.length > longestBoundary || !boundaryForm.test(boundary))
    throw malformed(`the boundary of a multipart body has 1 to ${longestBoundary} characters of RFC 2046`)
  return boundary
}

type Where = 'preamble' | 'headers' | 'body' | 'epilogue'

/** `data`: parts of that name. `paths`: the same, as files of a directory. `every`: parts of any name. */
export type KeptParts = 'data' | 'paths' | 'every'

type PartHead = NamedPart & { readonly type: string }

type ParserEvents = {
  readonly onPart: (part: PartHead) => void
  /** A view of the chunk, of all of it in the middle of a part. */
  readonly onBytes: (piece: Uint8Array) => void
  readonly onPartEnd: () => void
}

function createParser(boundary: string, kept: KeptParts, { onPart, onBytes, onPartEnd }: ParserEvents) {
  const delimiter = Buffer.from(`\r\n--${boundary}`)
  const blank = Buffer.from('\r\n\r\n')
  // A body may begin with its first delimiter, without the line break before it.
  let rest: Buffer = Buffer.from('\r\n')
  let where: Where = 'preamble'
  /** Bytes of `rest` that end the headers: they may begin the delimiter of an empty part. */
  let skipped = 0

  /** Where the beginning of a delimiter may end this text. */
  function tailOf(text: Buffer): number {
    for (let at = Math.max(0, text.byteLength - delimiter.byteLength + 1); at < text.byteLength; at++) {
      at = text.indexOf(0x0d, at)
      if (at === -1) break
      if (text.compare(delimiter, 0, text.byteLength - at, at) === 0) return at
    }
    return text.byteLength
  }

  function give(text: Buffer, end: number): void {
    if (where === 'body' && end > skipped) onBytes(text.subarray(skipped, end))
  }

  /** Returns the text after the headers. Undefined: more has to come. */
  function readHeaders(text: Buffer): Buffer | Failure | undefined {
    const end = text.indexOf(blank)
    if ((end === -1 ? text.byteLength : end) > headerBytes) return wrong(`over ${headerBytes} bytes`)
    if (end === -1) return undefined
    const head = headOf(text.toString('latin1', 0, end), kept)
    if (typeof head === 'string') return wrong(head)
    where = 'body'
    skipped = 2
    onPart(head)
    return text.subarray(end + 2)
  }

  return {
    isAtEnd: () => where === 'epilogue',
    /** Returns what is wrong with the body. */
    write(chunk: Buffer): Failure | undefined {
      let text = rest.byteLength > 0 && where !== 'epilogue' ? Buffer.concat([rest, chunk]) : chunk
      for (;;) {
        if (where === 'epilogue') return undefined
        if (where === 'headers') {
          if (text.byteLength >= 2 && text[0] === 0x2d && text[1] === 0x2d) where = 'epilogue'
          const after = where === 'headers' && text.byteLength >= 2 ? readHeaders(text) : undefined
          if (after instanceof Failure) return after
          if (where === 'headers') break
          text = after ?? text
          continue
        }
        const at = text.indexOf(delimiter)
        if (at === -1) {
          const tail = tailOf(text)
          give(text, tail)
          if (tail > 0) skipped = 0
          text = text.subarray(tail)
          break
        }
        give(text, at)
        if (where === 'body') onPartEnd()
        text = text.subarray(at + delimiter.byteLength)
        where = 'headers'
      }
      // A copy: a view would keep all of the chunk.
      rest = Buffer.from(text)
      return undefined
    },
  }
}

/** The headers of a part, or what is wrong with them. */
function headOf(block: string, kept: KeptParts): PartHead | string {
  // Text before the first line break belongs to the delimiter's line. RFC 2046 §5.1.1 allows white space there, and parsers
  // differ about it; no client sends it, so it is refused. A line that begins with white space continues a header.
  const [padding = '', ...lines] = block.replace(/\r\n(?=[ \t])/g, '').split('\r\n')
  if (padding !== '') return 'behind a boundary that is not one'
  if (lines.length > maxHeaders) return `more than ${maxHeaders}`
  const values = new Map<string, string>()
  const twice = new Set<string>()
  for (const line of lines) {
    if (hasControls(line)) return 'with control characters in them'
    const [, name = '', value = ''] = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*)$/.exec(line) ?? []
    if (name === '') return 'not of the form `name: value`'
    const key = name.toLowerCase()
    if (key.startsWith('content-') && values.has(key)) twice.add(key)
    values.set(key, value)
  }
  const disposition = values.get('content-disposition') ?? ''
  // Without it a part has no name, and the parser would skip it: RFC 7578 §4.2 requires one in every part.
  if (!/^form-data[ \t]*(;|$)/i.test(disposition)) return 'without a Content-Disposition of form-data'
  const part = twice.has('content-disposition') ? undefined : partNameOf(disposition)
  if (part === undefined) return 'with a Content-Disposition whose `name` can be read in two ways'
  if (hasControls(part.fileName ?? '')) return 'with a control character in a file name'
  const type = values.get('content-type') ?? ''
  const head = { ...part, type }
  if (part.name !== 'data' && kept !== 'every') return head
  if (kept === 'paths' && part.path === undefined)
    return 'without a file name that can be read in one way only: each file of a directory needs one, in UTF-8'
  for (const key of twice) return `with ${key} in them twice`
  if (/^multipart\//i.test(type)) return 'of a multipart within a multipart, which is not done here'
  return kept !== 'data' || part.isFile || isUtf8(type) ? head : 'of a text that is not UTF-8'
}

/** A type without a charset counts as UTF-8. */
function isUtf8(type: string): boolean {
  const charset = parametersOf(type)?.get('charset')
  if (charset === undefined && !/;\s*charset/i.test(type)) return true
  return /^(utf-?8|us-ascii)$/i.test(charset ?? '')
}

/** Control characters except the tab: below the space, and DEL. */
function hasControls(line: string): boolean {
  for (let index = 0; index < line.length; index++) {
    const code = line.charCodeAt(index)
    if ((code < 0x20 && code !== 0x09) || code === 0x7f) return true
  }
  return false
}

const wrong = (what: string): Failure => malformed(`the headers of a part are ${what}`)

const parameter = /[ \t]*;[ \t]*(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^ \t;"]+)))?/y

/** By name, in lower case. Undefined: they are malformed or ambiguous. */
function parametersOf(value: string): ReadonlyMap<string, string> | undefined {
  const found = new Map<string, string>()
  const text = value.replace(/[ \t]+$/, '')
  const begin = text.indexOf(';')
  parameter.lastIndex = begin === -1 ? text.length : begin
  while (parameter.lastIndex < text.length) {
    const match = parameter.exec(text)
    if (match === null) return undefined
    const [, name, quoted, plain] = match
    if (name === undefined) continue
    if (found.has(name.toLowerCase())) return undefined
    found.set(name.toLowerCase(), quoted?.replace(/\\(["\\])/g, '$1') ?? plain ?? '')
  }
  return found
}

const fileName = /[ \t]*;[ \t]*filename\*?[ \t]*=/i
const anotherName = /(?<!file)name\*?[ \t]*=/i

type NamedPart = {
  readonly name: string | undefined
  readonly isFile: boolean
  /** As the client sent it, as far as it can be read. */
  readonly fileName: string | undefined
  /** The file name, unless parsers could read it in different ways. */
  readonly path: string | undefined
}

/**
 * The part name in a Content-Disposition. Undefined: it is ambiguous. The gateway uses the file name in directories only, and clients
 * send it unescaped: browsers with backslashes, `form-data` with quotes too. So it may have any form, up to the end of the
 * line, as long as nothing in it looks like another name of the part.
 */
export function partNameOf(disposition: string): NamedPart | undefined {
  const all = parametersOf(disposition)
  const at = all === undefined ? disposition.search(fileName) : -1
  const isOpen = at !== -1 && !anotherName.test(disposition.slice(at))
  const named = isOpen ? parametersOf(disposition.slice(0, at)) : all
  // RFC 7578 has no `name*`, and only some parsers take it for a name.
  if (named === undefined || named.has('name*')) return undefined
  const isFile = isOpen || named.has('filename') || named.has('filename*')
  const path = isOpen ? undefined : pathIn(named)
  const sent = isOpen ? disposition.slice(at).replace(fileName, '').trim() : named.get('filename')
  const loose = Buffer.from(sent?.replace(/^"|"?;?$/g, '') ?? '', 'latin1').toString()
  return { name: named.get('name'), isFile, path, fileName: isFile ? (path ?? loose) : undefined }
}

/** The file name, where it has one meaning only: UTF-8, by `filename` or `filename*` (RFC 8187), or the same by both. */
function pathIn(named: ReadonlyMap<string, string>): string | undefined {
  const plain = named.get('filename')
  const extended = /^utf-8'[^']*'(.*)$/i.exec(named.get('filename*') ?? '')?.[1]
  if (named.has('filename*') && extended === undefined) return undefined
  try {
    const read = plain === undefined ? undefined : utf8.decode(Buffer.from(plain, 'latin1'))
    const decoded = extended === undefined ? undefined : decodeURIComponent(extended)
    return read === undefined || decoded === undefined || read === decoded ? (read ?? decoded) : undefined
  } catch {
    return undefined
  }
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
