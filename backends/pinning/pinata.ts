// Pinata's v3 API: the upload as a CAR on the public network, in one request, or in pieces (TUS) above its limit.
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { call, createProviderAgent, failed, type Reply } from './call.ts'
import type { PinState, Provider, ProviderContext, ProviderKind, ReadBack, Upload } from './contract.ts'
import { fileForm } from './form.ts'
import { clocks, gateway, readGateway, token, url } from './options.ts'

const home = { uploads: 'https://uploads.pinata.cloud', api: 'https://api.pinata.cloud' }
const publicGateway: ReadBack = {
  use: 'plain',
  options: { url: 'https://gateway.pinata.cloud' },
  perMinute: 200,
  perCidPerMinute: 15,
  lacks: 'files of more than 2 MiB: name a gateway that gives blocks or CARs',
}

const options = z.strictObject({
  token: token().describe('The JWT of a key that may write files and read them.'),
  name: z.string().max(64).default('cidgate').describe('What uploads are called there.'),
  uploadsUrl: url().default(home.uploads).describe('Where files are sent.'),
  apiUrl: url().default(home.api).describe('Where they are listed and removed.'),
  resumableAbove: z.int().min(1).default(94_371_840).describe('Bytes above which an upload goes in pieces.'),
  pieceBytes: z
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

export const pinata: ProviderKind<typeof options> = { use: 'pinata', options, readBack, create: createPinata }

function readBack({ gateway: said, apiUrl, connect }: z.output<typeof options>): ReadBack | false | undefined {
  return said === undefined && apiUrl === home.api ? publicGateway : readGateway(said, connect)
}

function createPinata(settings: z.output<typeof options>, { name, userAgent, clock }: ProviderContext): Provider {
  const agent = createProviderAgent(settings.connect)
  const ask = (
    method: Parameters<typeof call>[0]['method'],
    target: string,
    signal: AbortSignal,
    more: Partial<Parameters<typeof call>[0]> = {},
  ): Promise<Reply> =>
    call({
      name,
      agent,
      clock,
      signal,
      method,
      url: target,
      idleMs: settings.idle,
      ...more,
      headers: { authorization: `Bearer ${settings.token}`, 'user-agent': userAgent, ...more.headers },
    })
  const files = `${settings.uploadsUrl.replace(/\/+$/, '')}/v3/files`
  const api = settings.apiUrl.replace(/\/+$/, '')

  async function whole(upload: Upload, signal: AbortSignal): Promise<string> {
    const form = fileForm(
      { field: 'file', type: carType, bytes: upload.carBytes, content: upload.car(signal) },
      // Without it files are private: stored, paid for, and readable by nobody.
      { network: 'public', name: settings.name, car: 'true' },
    )
    const { json } = await ask('POST', files, signal, form)
    const { cid, network } = (json as { data?: { cid?: unknown; network?: unknown } } | undefined)?.data ?? {}
    if (network !== undefined && network !== 'public') throw failed(name, 'it stored the file as private', 'content')
    if (typeof cid !== 'string') throw failed(name, 'its answer names no CID', 'transient')
    return cid
  }

  async function inPieces(upload: Upload, signal: AbortSignal): Promise<string> {
    const about = { filename: settings.name, filetype: carType, network: 'public', car: 'true' }
    const metadata = Object.entries(about).map(([key, value]) => `${key} ${Buffer.from(value).toString('base64')}`)
    const begun = await ask('POST', files, signal, {
      headers: { 'upload-length': String(upload.carBytes), 'upload-metadata': metadata.join(',') },
    })
    const location = begun.header('location')
    if (!location) throw failed(name, 'it did not say where the pieces go', 'transient')
    const target = new URL(location, files)
    if (target.origin !== new URL(files).origin) throw failed(name, 'it wants the pieces at another place', 'content')
    let offset = 0
    let cid: string | undefined
    for await (const piece of pieces(upload.car(signal), settings.pieceBytes)) {
      const length = piece.reduce((sum, { byteLength }) => sum + byteLength, 0)
      const reply = await ask('PATCH', target.href, signal, {
        headers: {
          'upload-offset': String(offset),
          'content-type': 'application/offset+octet-stream',
          'content-length': String(length),
        },
        body: (async function* () {
          yield* piece
        })(),
      })
      offset += length
      cid = reply.header('upload-cid') ?? cid
    }
    if (cid === undefined) throw failed(name, 'it took all pieces and named no CID', 'transient')
    return cid
  }

  async function listed(cid: CID, signal: AbortSignal): Promise<string[]> {
    const { json } = await ask('GET', `${api}/v3/files/public?cid=${cid}`, signal)
    const found = (json as { data?: { files?: { id?: unknown; cid?: unknown }[] } } | undefined)?.data?.files ?? []
    return found.flatMap(({ id }) => (typeof id === 'string' ? [id] : []))
  }

  return {
    name,
    traits: { takesBytes: true, local: false },
    async pin(upload, signal) {
      const cid = await (upload.carBytes > settings.resumableAbove ? inPieces : whole)(upload, signal)
      return CID.parse(cid)
    },
    async unpin(cid, signal) {
      for (const id of await listed(cid, signal)) {
        await ask('DELETE', `${api}/v3/files/public/${encodeURIComponent(id)}`, signal, { accept: [404] })
      }
    },
    async status(cid, signal): Promise<PinState> {
      return (await listed(cid, signal)).length > 0 ? 'pinned' : 'absent'
    },
    async probe(signal) {
      // This passes for keys that may do nothing; listing needs at least the right to read.
      await ask('GET', `${api}/data/testAuthentication`, signal)
      await ask('GET', `${api}/v3/files/public?limit=1`, signal)
    },
    close: () => agent.destroy(),
  }
}

/** The stream in pieces of this many bytes; a piece at a time is in memory, as the chunks it came in. */
async function* pieces(stream: AsyncIterable<Uint8Array>, most: number): AsyncGenerator<Uint8Array[]> {
  let held: Uint8Array[] = []
  let bytes = 0
  for await (let chunk of stream) {
    while (bytes + chunk.byteLength >= most) {
      const part = chunk.subarray(0, most - bytes)
      yield [...held, part]
      held = []
      chunk = chunk.subarray(part.byteLength)
      bytes = 0
    }
    if (chunk.byteLength === 0) continue
    held.push(chunk)
    bytes += chunk.byteLength
  }
  if (bytes > 0) yield held
}
