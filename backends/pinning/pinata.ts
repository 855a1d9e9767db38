// Pinata's v3 API: sends the upload as a CAR to the public network, in one request, or in pieces
// (TUS) above its limit.

import { LRUCache } from 'lru-cache'
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { blockKey, parseCid } from '../../src/core/cid.ts'
import type { Clock } from '../../src/core/clock.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { headerToken, serviceUrl } from '../../src/core/units.ts'
import { type CallService, createService, failed, fileForm, type Reply } from './call.ts'
import type { PinState, Provider, ProviderContext, ProviderKind, ReadBack, Upload } from './contract.ts'
import { clocks, gateway, readGateway } from './options.ts'

const home = { uploads: 'https://uploads.pinata.cloud', api: 'https://api.pinata.cloud' } as const
const publicGateway: ReadBack = {
  use: 'plain',
  options: { url: 'https://gateway.pinata.cloud' },
  perMinute: 200,
  perCidPerMinute: 15,
  lacks: 'files of more than 2 MiB: name a gateway that gives blocks or CARs',
}

const options = z.strictObject({
  token: headerToken().describe('The JWT of a key that may write files and read them.'),
  uploadName: z.string().min(1).max(64).default('cidgate').describe('Name of uploads that have none.'),
  uploadsUrl: serviceUrl().default(home.uploads).describe('Where files are sent.'),
  apiUrl: serviceUrl().default(home.api).describe('Where they are listed and removed.'),
  resumableAbove: z.int().min(1).default(94_371_840).describe('Bytes above which an upload goes in pieces.'),
  chunkBytes: z
    .int()
    .min(1)
    .default(50 * 1024 * 1024 + 1)
    .describe('The size of a piece.'),
  gateway: gateway(
    'By default the public one of Pinata, which gives files and nothing else, where `apiUrl` is not set.',
  ),
  ...clocks,
})

const carType = 'application/vnd.ipld.car'
const firstPollMs = 500
const maxPollMs = 8_000

export const pinata: ProviderKind<typeof options> = { use: 'pinata', options, readBack, create: createPinata }

function readBack({ gateway: said, apiUrl, connectTimeout }: z.output<typeof options>): ReadBack | false | undefined {
  return said === undefined && apiUrl === home.api ? publicGateway : readGateway(said, connectTimeout)
}

function createPinata(settings: z.output<typeof options>, context: ProviderContext): Provider {
  const { name, clock } = context
  const { ask, close } = createService(context, settings, { authorization: `Bearer ${settings.token}` })
  const files = `${settings.uploadsUrl.replace(/\/+$/, '')}/v3/files`
  const api = settings.apiUrl.replace(/\/+$/, '')

  const nameFor = (upload: Upload): string => upload.name ?? settings.uploadName

  const pieces = createPieces({
    name,
    clock,
    files,
    ask,
    chunkBytes: settings.chunkBytes,
    metadata: (upload) => ({ filename: nameFor(upload), filetype: carType, network: 'public', car: 'true' }),
  })

  async function sendAtOnce(upload: Upload, signal: AbortSignal): Promise<string | undefined> {
    const form = fileForm(
      { field: 'file', type: carType, bytes: upload.carBytes, content: upload.car(signal) },
      // Files are private by default: stored, paid for, and not readable by clients.
      { network: 'public', name: nameFor(upload), car: 'true' },
    )
    const { json } = await ask('POST', files, signal, form)
    const { cid, network } = (json as { data?: { cid?: unknown; network?: unknown } } | undefined)?.data ?? {}
    if (network !== undefined && network !== 'public') throw failed(name, 'it stored the file as private', 'content')
    return typeof cid === 'string' ? cid : undefined
  }

  async function listed(cid: CID, signal: AbortSignal): Promise<string[]> {
    const { json } = await ask('GET', `${api}/v3/files/public?cid=${cid}`, signal)
    const found = (json as { data?: { files?: { id?: unknown; cid?: unknown }[] } } | undefined)?.data?.files ?? []
    return found.flatMap((one) => (typeof one.id === 'string' && isSame(one.cid, cid) ? [one.id] : []))
  }

  /** The service accepted the upload without a CID; its list has it a moment later. */
  async function lookUp(cid: CID, signal: AbortSignal): Promise<CID> {
    for (let waitMs = firstPollMs; waitMs <= maxPollMs; waitMs *= 2) {
      if ((await listed(cid, signal)).length > 0) return cid
      await clock.sleep(waitMs, signal)
    }
    throw failed(name, 'it took the upload, named no CID, and does not list it', 'transient')
  }

  return {
    name,
    traits: { takesBytes: true, local: false },
    async pin(upload, signal) {
      const cid = await (upload.carBytes > settings.resumableAbove ? pieces : sendAtOnce)(upload, signal)
      return cid === undefined ? lookUp(upload.cid, signal) : CID.parse(cid)
    },
    async unpin(cid, signal) {
      for (const id of await listed(cid, signal)) {
        await ask('DELETE', `${api}/v3/files/public/${encodeURIComponent(id)}`, signal, { accept: [404] })
      }
    },
    async status(cid, signal): Promise<PinState> {
      return (await listed(cid, signal)).length > 0 ? 'pinned' : 'missing'
    },
    async probe(signal) {
      // This succeeds even for keys without permissions; listing needs that of reading.
      await ask('GET', `${api}/data/testAuthentication`, signal)
      await ask('GET', `${api}/v3/files/public?limit=1`, signal)
    },
    close,
  }
}

/** An entry without a CID counts as the requested one. */
const isSame = (text: unknown, cid: CID): boolean => {
  const other = typeof text === 'string' ? parseCid(text) : cid
  return other !== undefined && blockKey(other) === blockKey(cid) && other.code === cid.code
}

type PiecesOptions = {
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
function createPieces({ name, clock, files, metadata, chunkBytes, ask }: PiecesOptions) {
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

  function offsetIn(reply: Reply, defaultOffset: number | undefined, total: number): UploadedSoFar {
    const said = reply.header('upload-offset')
    const offset = said === undefined ? defaultOffset : /^\d+$/.test(said) ? Number(said) : undefined
    if (offset === undefined || offset > total) throw failed(name, 'it sent no valid Upload-Offset (TUS)', 'transient')
    return { offset, cid: reply.header('upload-cid') }
  }

  /** Undefined if the service no longer knows the upload, or does not report an offset. */
  async function offsetAt(place: string, total: number, signal: AbortSignal): Promise<UploadedSoFar | undefined> {
    const reply = await ask('HEAD', place, signal, { headers: tus, accept: [400, 404, 405, 410, 412] })
    return reply.status >= 400 ? undefined : offsetIn(reply, undefined, total)
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
    return offsetIn(reply, from + length, total)
  }

  return async function send(upload: Upload, signal: AbortSignal): Promise<string | undefined> {
    const key = upload.cid.toString()
    const total = upload.carBytes
    const reader = createReader(upload, signal)
    let progress: UploadedSoFar | undefined
    /** The highest offset that the service reported, and the highest that was sent. */
    let best = 0
    let furthest = 0
    let failures = 0
    /** Decides if the upload is resumed after an error: at most four in a row without progress. */
    const mayResume = (error: unknown) =>
      isFailure(error) &&
      error.facts.class === 'transient' &&
      error.retryAfterMs === undefined &&
      ++failures < maxFailures

    const step = async (): Promise<UploadedSoFar> => {
      const known = begun.get(key)
      const found = progress ?? (known === undefined ? undefined : await offsetAt(known, total, signal))
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
          progress = next
        } catch (error) {
          signal.throwIfAborted()
          progress = undefined
          reader.stop()
          if (!begun.has(key) || !mayResume(error)) throw error
          await clock.sleep(Math.min(maxWaitMs, firstWaitMs * 2 ** (failures - 1)), signal)
        }
        if (progress?.offset !== total) continue
        if (progress.cid !== undefined) begun.delete(key)
        return progress.cid
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
