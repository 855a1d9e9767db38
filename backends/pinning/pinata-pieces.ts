// A resumable upload (TUS): nothing is buffered, and after a failure it continues from the offset
// that the service reports, in the same attempt or the next one.
import { LRUCache } from 'lru-cache'
import type { Clock } from '../../src/core/clock.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { type CallService, failed, type Reply } from './call.ts'
import type { Upload } from './contract.ts'

export type PiecesOptions = {
  readonly name: string
  readonly clock: Clock
  readonly files: string
  readonly metadata: (upload: Upload) => Readonly<Record<string, string>>
  readonly chunkBytes: number
  readonly ask: CallService
}

/** The service's offset, and its CID once complete. */
type UploadedSoFar = { readonly offset: number; readonly cid: string | undefined }

const tus = { 'tus-resumable': '1.0.0' } as const
const maxFailures = 5
const firstWaitMs = 500
const maxWaitMs = 8_000
const maxBegun = 1_000

/** Resolves once the service has every byte, with the CID that it reported, if any. */
export function createPieces({ name, clock, files, metadata, chunkBytes, ask }: PiecesOptions) {
  /** URLs of incomplete uploads by CID. */
  const begun = new LRUCache<string, string>({ max: maxBegun })

  async function begin(upload: Upload, signal: AbortSignal): Promise<string> {
    const words = Object.entries(metadata(upload)).map(
      ([key, value]) => `${key} ${Buffer.from(value).toString('base64')}`,
    )
    const headers = { ...tus, 'upload-length': String(upload.carBytes), 'upload-metadata': words.join(',') }
    const location = (await ask('POST', files, signal, { headers })).header('location')
    if (!location || !URL.canParse(location, files))
      throw failed(name, 'it sent no Location to upload to (TUS)', 'transient')
    const target = new URL(location, files)
    if (target.origin !== new URL(files).origin)
      throw failed(name, 'its upload Location is on another host (TUS)', 'content')
    return target.href
  }

  function standIn(reply: Reply, usual: number | undefined, total: number): UploadedSoFar {
    const said = reply.header('upload-offset')
    const offset = said === undefined ? usual : /^\d+$/.test(said) ? Number(said) : undefined
    if (offset === undefined || offset > total) throw failed(name, 'it sent no valid Upload-Offset (TUS)', 'transient')
    return { offset, cid: reply.header('upload-cid') }
  }

  /** Undefined if the service no longer knows the upload, or does not report an offset. */
  async function look(place: string, total: number, signal: AbortSignal): Promise<UploadedSoFar | undefined> {
    const reply = await ask('HEAD', place, signal, { headers: tus, accept: [400, 404, 405, 410, 412] })
    return reply.status >= 400 ? undefined : standIn(reply, undefined, total)
  }

  async function patch(
    place: string,
    from: number,
    reader: PieceReader,
    total: number,
    signal: AbortSignal,
  ): Promise<UploadedSoFar> {
    const length = Math.min(chunkBytes, total - from)
    const reply = await ask('PATCH', place, signal, {
      headers: {
        ...tus,
        'upload-offset': String(from),
        'content-type': 'application/offset+octet-stream',
        'content-length': String(length),
      },
      body: reader.take(from, length),
      accept: [409],
    })
    if (reply.status === 409)
      throw failed(name, 'its Upload-Offset does not match what it said before (TUS)', 'transient')
    return standIn(reply, from + length, total)
  }

  return async function send(upload: Upload, signal: AbortSignal): Promise<string | undefined> {
    const key = upload.cid.toString()
    const total = upload.carBytes
    const reader = createReader(upload, signal)
    let stand: UploadedSoFar | undefined
    /** The highest offset that the service reported, and the highest that was sent. */
    let best = 0
    let furthest = 0
    let failures = 0
    /** Decides if the upload is resumed after an error; not without progress. */
    const mayGoOn = (error: unknown) =>
      isFailure(error) &&
      error.facts.class === 'transient' &&
      error.retryAfterMs === undefined &&
      ++failures < maxFailures

    const step = async (): Promise<UploadedSoFar> => {
      const known = begun.get(key)
      const found = stand ?? (known === undefined ? undefined : await look(known, total, signal))
      // Some services forget an upload as soon as it is complete.
      if (!found && furthest === total) return { offset: total, cid: undefined }
      if (!found) begun.delete(key)
      const place = found && known !== undefined ? known : await begin(upload, signal)
      begun.set(key, place)
      const from = found?.offset ?? 0
      if (from === total) return { offset: total, cid: found?.cid }
      furthest = Math.max(furthest, Math.min(total, from + chunkBytes))
      return patch(place, from, reader, total, signal)
    }

    try {
      for (;;) {
        try {
          const next = await step()
          if (next.offset > best) failures = 0
          best = Math.max(best, next.offset)
          stand = next
        } catch (error) {
          signal.throwIfAborted()
          stand = undefined
          reader.stop()
          if (!begun.has(key) || !mayGoOn(error)) throw error
          await clock.sleep(Math.min(maxWaitMs, firstWaitMs * 2 ** (failures - 1)), signal)
        }
        if (stand?.offset !== total) continue
        if (stand.cid !== undefined) begun.delete(key)
        return stand.cid
      }
    } finally {
      reader.stop()
    }
  }
}

type PieceReader = ReturnType<typeof createReader>

/**
 * Reads the CAR from any offset: sequential reads continue, a jump starts again from the beginning.
 */
function createReader(upload: Upload, signal: AbortSignal) {
  let open: { readonly chunks: AsyncIterator<Uint8Array>; readonly own: AbortController; at: number } | undefined
  let rest: Uint8Array = new Uint8Array()

  function stop(): void {
    open?.own.abort(new Failure('cancelled', 'the piece is not sent any more', { source: 'ours' }))
    // A read in progress ends by its signal; it is not awaited.
    open?.chunks.return?.()?.catch(() => {})
    open = undefined
  }

  function start(): NonNullable<typeof open> {
    stop()
    const own = new AbortController()
    rest = new Uint8Array()
    open = { chunks: upload.car(AbortSignal.any([signal, own.signal]))[Symbol.asyncIterator](), own, at: 0 }
    return open
  }

  return {
    stop,
    async *take(from: number, length: number): AsyncGenerator<Uint8Array> {
      const source = open?.at === from ? open : start()
      const until = from + length
      while (source.at < until) {
        if (rest.byteLength === 0) {
          const { value, done } = await source.chunks.next()
          if (source !== open) return
          if (done)
            throw new Failure('upstream-error', 'the upload is shorter than its declared length', { source: 'ours' })
          rest = value
        }
        const part = rest.subarray(0, (source.at < from ? from : until) - source.at)
        rest = rest.subarray(part.byteLength)
        const isWanted = source.at >= from
        source.at += part.byteLength
        if (isWanted) yield part
      }
    },
  }
}
