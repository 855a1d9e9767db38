// Parses a multipart body as it streams. It keeps parts named `data`, files and text alike, and skips the rest, within limits.
// It never waits for a whole body and never uses a file name.
import type { IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import { TextDecoder } from 'node:util'
import { Busboy, type BusboyInstance } from '@fastify/busboy'
import type { Clock } from '../../core/clock.ts'
import { cancelled, Failure } from '../../core/failure.ts'
import { malformed, tooLarge } from '../failures.ts'
import type { UploadSlot } from './admission.ts'
import { boundaryOf, createPartWatch, type KeptParts, type SeenPart } from './part-watch.ts'

export type ReceiveLimits = {
  /** Of all `data` parts together. */
  readonly maxBytes: number
  /** After this long without a byte the client counts as gone. */
  readonly idleMs: number
  /** Least bytes a second on average, while the gateway was ready to read. 0: no limit. */
  readonly minRate: number
  /** The rate is not checked before this. */
  readonly graceMs: number
}

export type ReceiveOptions = ReceiveLimits & {
  readonly clock: Clock
  /** By default `data`. Of the others, parts may be empty, and text need not be UTF-8. */
  readonly parts?: KeptParts
  readonly mostParts?: number
  /** `take` has copied each piece by the time it asks for the next one, so that the memory of the piece may be freed. */
  readonly isCopied?: boolean
  /** Ends it from outside. */
  readonly signal?: AbortSignal
  /** Measures how fast the upload arrives, and may end it. */
  readonly slot?: Pick<UploadSlot, 'rate' | 'signal' | 'quota'> | undefined
}

export type PartName = {
  readonly fileName: string | undefined
  readonly type: string
  /** Its place in a directory, unchecked: undefined if parsers could read it in different ways. */
  readonly path: string | undefined
}

const usualParts = 128
const mostFields = 64
const mostHeaderPairs = 20
const headerBytes = 16 * 1024
const fieldBytes = 64 * 1024
const tickMs = 500
const stuckMs = 60_000
/** Parts that are taken at once; the client waits where more have come. */
const mostOpen = 64

/** Bytes that a body may have besides its data: boundaries, headers, other parts. */
export const aroundBytes = (mostParts = usualParts): number => 64 * 1024 + Math.max(0, mostParts - usualParts) * 1024

/**
 * Calls `take` for each `data` part, in order, with its bytes as they come; resolves with the results. When anything fails,
 * every part ends with that failure, and this rejects after the last `take` has settled. The request is then paused, not
 * destroyed, so that the client can still read the answer.
 */
export async function receive<T>(
  request: IncomingMessage,
  options: ReceiveOptions,
  take: (bytes: AsyncIterable<Uint8Array>, signal: AbortSignal, part: PartName) => Promise<T>,
): Promise<T[]> {
  const boundary = boundaryOf(request.headers['content-type'])
  const { parts = 'data', mostParts = usualParts } = options
  const every = parts === 'every'
  // Parts that the part watch has seen and the parser has not. Both must agree on which of them are `data`.
  const found: SeenPart[] = []
  let path: string | undefined
  const parser = new Busboy({
    headers: { 'content-type': `multipart/form-data; boundary="${boundary}"` },
    // Every `data` part is read as a file, with or without a file name: the parser would hold a field in memory.
    isPartAFile: (name, _type, fileName) => {
      const seen = found.shift()
      if (seen?.isData !== (name === 'data')) fail(misread())
      path = seen?.path
      return every || name === 'data' || fileName !== undefined
    },
    // With `every`, names matter: keep the folders in them.
    preservePath: every,
    limits: {
      fieldNameSize: 100,
      fieldSize: fieldBytes,
      fields: mostFields,
      fileSize: options.maxBytes + 1,
      files: mostParts,
      parts: mostParts,
      headerPairs: mostHeaderPairs,
      headerSize: headerBytes,
    },
  })
  const stop = new AbortController()
  const done = Promise.withResolvers<void>()
  const takes: Promise<T>[] = []
  const open = new Set<Readable>()
  let dataBytes = 0

  const fail = (error: unknown): void => {
    if (stop.signal.aborted) return
    stop.abort(error)
    done.reject(error)
    for (const file of open) file.destroy(stop.signal.reason)
  }

  async function* counted(file: Readable, isText: boolean): AsyncGenerator<Uint8Array> {
    const decoder = isText ? new TextDecoder('utf-8', { fatal: true }) : undefined
    let bytes = 0
    for await (const piece of file as AsyncIterable<Buffer>) {
      bytes += piece.byteLength
      dataBytes += piece.byteLength
      if (dataBytes > options.maxBytes) throw tooLarge(options.maxBytes)
      options.slot?.quota?.add(piece.byteLength)
      decode(decoder, piece)
      yield piece
      if (options.isCopied) giveBack(piece)
    }
    stop.signal.throwIfAborted()
    decode(decoder)
    if (bytes === 0 && parts === 'data') throw malformed('the part `data` is empty')
  }

  parser.on('file', (name, file, fileName, _encoding, type) => {
    file.on('error', () => {})
    if (stop.signal.aborted || (name !== 'data' && !every)) return void file.resume()
    open.add(file)
    const bytes = counted(file, fileName === undefined && parts === 'data')
    const taken = take(bytes, stop.signal, { fileName, type, path }).finally(() => {
      open.delete(file)
      pumping?.goOn()
    })
    taken.catch(fail)
    takes.push(taken)
  })
  for (const limit of ['partsLimit', 'filesLimit', 'fieldsLimit'] as const)
    parser.on(limit, () => fail(malformed(`more than ${mostParts} parts, or ${mostFields} fields, in one upload`)))
  parser.on('error', (error) => fail(malformed('the multipart body is broken or cut', error)))
  parser.on('finish', () => {
    // The parser silently skips a part with a line break in its decoded names.
    if (found.length > 0) fail(misread())
    done.resolve()
  })

  const watch = createPartWatch(boundary, {
    headerBytes,
    headerPairs: mostHeaderPairs,
    parts,
    onPart: (part) => found.push(part),
  })
  const isCrowded = () => open.size > mostOpen
  const pumping: Pumping = pump(request, parser, { ...options, mostParts, look: watch, fail, isCrowded })
  const signals = [options.signal, options.slot?.signal].filter((signal) => signal !== undefined)
  const onAbort = () => fail(signals.find(({ aborted }) => aborted)?.reason)
  for (const signal of signals) signal.addEventListener('abort', onAbort, { once: true })
  if (signals.some(({ aborted }) => aborted)) onAbort()
  try {
    await done.promise
    const results = await Promise.all(takes)
    if (results.length === 0) throw malformed('there is no part named `data` in this upload')
    return results
  } catch (error) {
    fail(error)
    throw stop.signal.reason
  } finally {
    pumping.end()
    for (const signal of signals) signal.removeEventListener('abort', onAbort)
    await Promise.allSettled(takes)
  }
}

type PumpOptions = ReceiveOptions & {
  readonly look: (chunk: Uint8Array) => Failure | undefined
  readonly fail: (error: unknown) => void
  /** More parts are being taken than should be at once. */
  readonly isCrowded: () => boolean
}

type Pumping = {
  /** Call it when the body may go on. */
  goOn(): void
  end(): void
}

/** Pumps the request into the parser as fast as it takes it, and times the client: waits that the gateway causes do not count. */
function pump(request: IncomingMessage, parser: BusboyInstance, options: PumpOptions): Pumping {
  const { clock, fail, look, isCrowded, maxBytes, mostParts, idleMs, minRate, graceMs } = options
  const rate = options.slot?.rate
  const began = clock.monotonic()
  let received = 0
  let since = began
  let pausedAt: number | undefined
  let pausedMs = 0
  let isFull = false

  const onData = (chunk: Buffer): void => {
    received += chunk.byteLength
    rate?.received(chunk.byteLength)
    since = clock.monotonic()
    if (received > maxBytes + aroundBytes(mostParts)) return fail(tooLarge(maxBytes))
    const wrong = look(chunk)
    if (wrong) return fail(wrong)
    isFull = !parser.write(chunk)
    if (!isFull && !isCrowded()) return
    request.pause()
    rate?.turn(false)
    pausedAt = since
  }
  const onDrain = (): void => {
    isFull = false
    goOn()
  }
  const goOn = (): void => {
    if (pausedAt === undefined || isFull || isCrowded()) return
    const now = clock.monotonic()
    pausedMs += now - pausedAt
    pausedAt = undefined
    since = now
    rate?.turn(true)
    request.resume()
  }
  const onEnd = (): void => {
    rate?.turn(false)
    cancelTick()
    cancelTick = clock.after(stuckMs, () => fail(malformed('the multipart body does not end')))
    parser.end()
  }
  const onGone = (): void => {
    if (!request.complete) fail(cancelled('the client left in the middle of its upload'))
  }
  const tick = (): void => {
    cancelTick = clock.after(tickMs, tick)
    const now = clock.monotonic()
    if (pausedAt !== undefined) {
      if (now - pausedAt > stuckMs)
        fail(
          new Failure(
            'upstream-error',
            `upload timed out: this gateway processed none of it for ${stuckMs} ms; send it again`,
            { source: 'ours' },
          ),
        )
      return
    }
    const ms = now - began - pausedMs
    if (idleMs > 0 && now - since > idleMs) fail(slow(`upload timed out: no data for ${idleMs} ms; send it again`))
    else if (ms > graceMs && received < (minRate * ms) / 1000)
      fail(slow(`upload too slow: less than ${minRate} bytes a second; send it again over a faster connection`))
  }
  let cancelTick = clock.after(tickMs, tick)

  rate?.turn(true)
  parser.on('drain', onDrain)
  request.on('data', onData)
  request.on('end', onEnd)
  request.on('error', onGone)
  request.on('close', onGone)
  if (request.destroyed) onGone()
  const end = (): void => {
    cancelTick()
    rate?.turn(false)
    parser.off('drain', onDrain)
    request.off('data', onData)
    request.off('end', onEnd)
    request.off('close', onGone)
    request.on('error', () => {})
    request.off('error', onGone)
    pausedAt = undefined
    request.pause()
  }
  return { goOn, end }
}

/**
 * Frees what arrived as soon as it was copied into a block. Otherwise it lies there until V8 looks at the whole heap, which it
 * does the more often the more such memory there is: half of the processor time of a large upload. Only a piece that is all of
 * its buffer: no other part of the body lies in that.
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

const misread = (): Failure => malformed('the headers of a part are ambiguous: parsers read them in two ways')

const slow = (why: string): Failure => new Failure('upload-too-slow', why, { source: 'client' })
