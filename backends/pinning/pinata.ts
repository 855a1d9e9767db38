// Pinata's v3 API: sends the upload as a CAR to the public network, in one request, or in pieces
// (TUS) above its limit.
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { blockKey, parseCid } from '../../src/core/cid.ts'
import { headerToken, serviceUrl } from '../../src/core/units.ts'
import { createService, failed } from './call.ts'
import type { PinState, Provider, ProviderContext, ProviderKind, ReadBack, Upload } from './contract.ts'
import { fileForm } from './form.ts'
import { clocks, gateway, readGateway } from './options.ts'
import { createPieces } from './pinata-pieces.ts'

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
const firstLookMs = 500
const maxLookMs = 8_000

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

  async function whole(upload: Upload, signal: AbortSignal): Promise<string | undefined> {
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
    for (let waitMs = firstLookMs; waitMs <= maxLookMs; waitMs *= 2) {
      if ((await listed(cid, signal)).length > 0) return cid
      await clock.sleep(waitMs, signal)
    }
    throw failed(name, 'it took the upload, named no CID, and does not list it', 'transient')
  }

  return {
    name,
    traits: { takesBytes: true, local: false },
    async pin(upload, signal) {
      const cid = await (upload.carBytes > settings.resumableAbove ? pieces : whole)(upload, signal)
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
const isSame = (told: unknown, cid: CID): boolean => {
  const other = typeof told === 'string' ? parseCid(told) : cid
  return other !== undefined && blockKey(other) === blockKey(cid) && other.code === cid.code
}
