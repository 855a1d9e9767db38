// Kubo's RPC and compatible services (Filebase RPC, Infura accounts): sends the upload as a CAR,
// which keeps the CID, or as a file with every option set. Detects errors that follow a 200 (a
// failed pin, a trailer).
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { serviceUrl } from '../../src/core/units.ts'
import { authorization, createService, failed, fileForm, jsonLines, type Reply } from './call.ts'
import {
  addOptionsOfKubo,
  type PinState,
  type Provider,
  type ProviderContext,
  type ProviderKind,
  type ReadBack,
  shapes,
  type Upload,
} from './contract.ts'
import { auth, clocks, gateway, readGateway } from './options.ts'

const options = z.strictObject({
  url: serviceUrl()
    .refine((text) => !/\/api\/v0\/?$/.test(text), 'expected the address without /api/v0, which is put behind it')
    .describe('The RPC address, without /api/v0.'),
  auth: auth(),
  uploadAs: z
    .enum(['car', 'add'])
    .default('car')
    .describe('car keeps the CID; add is for services without dag/import.'),
  gateway: gateway('By default its RPC, for what lies in the node.'),
  ...clocks,
})

/** Everything that the node's configuration could otherwise decide. */
export const kubo: ProviderKind<typeof options> = { use: 'kubo', options, readBack, create: createKubo }

function readBack(settings: z.output<typeof options>): ReadBack | false | undefined {
  if (settings.gateway !== undefined) return readGateway(settings.gateway, settings.connectTimeout)
  const { url, auth, connectTimeout } = settings
  const headers = authorization(auth)
  return {
    use: 'kubo',
    options: { url, headers, connectTimeout: `${connectTimeout}ms`, offline: true, allowPrivate: true },
  }
}

function createKubo(settings: z.output<typeof options>, context: ProviderContext): Provider {
  const { name } = context
  const { ask, close } = createService(context, settings, authorization(settings.auth))

  async function rpc(
    command: string,
    query: Readonly<Record<string, string>>,
    signal: AbortSignal,
    form?: ReturnType<typeof fileForm>,
    accept?: readonly number[],
  ): Promise<Reply> {
    const target = new URL(settings.url)
    target.pathname = `${target.pathname.replace(/\/+$/, '')}/api/v0/${command}`
    for (const [key, value] of Object.entries(query)) target.searchParams.set(key, value)
    const reply = await ask('POST', target, signal, { ...form, accept })
    const late = reply.trailer('x-stream-error')
    if (late)
      throw failed(name, `it failed after it had begun to answer (X-Stream-Error): ${late.slice(0, 200)}`, 'transient')
    return reply
  }

  async function byCar(upload: Upload, signal: AbortSignal): Promise<string> {
    const type = 'application/vnd.ipld.car'
    const form = fileForm({ field: 'file', type, bytes: upload.carBytes, content: upload.car(signal) })
    const lines = jsonLines((await rpc('dag/import', { 'pin-roots': 'true', stats: 'false' }, signal, form)).text)
    const root = lines
      .map((line) => line['Root'] as { Cid?: { '/'?: string }; PinErrorMsg?: string } | undefined)
      .find(Boolean)
    if (root?.PinErrorMsg)
      throw failed(name, `it stored the blocks and did not pin them: ${root.PinErrorMsg.slice(0, 200)}`, 'transient')
    const cid = root?.Cid?.['/']
    if (!cid) throw failed(name, 'its answer ended without a root', 'transient')
    // dag/import has no option for a name: pin/add names the pin that exists.
    if (upload.name !== undefined) await rpc('pin/add', { arg: cid, name: upload.name }, signal)
    return cid
  }

  async function byAdd(upload: Upload, signal: AbortSignal): Promise<string> {
    const form = fileForm({
      field: 'file',
      type: 'application/octet-stream',
      bytes: upload.bytes,
      content: upload.file(signal),
    })
    const named = upload.name === undefined ? {} : { 'pin-name': upload.name }
    const query = { ...addOptionsOfKubo(shapes[upload.profile]), ...named }
    const lines = jsonLines((await rpc('add', query, signal, form)).text)
    const hash = lines.find((line) => typeof line['Hash'] === 'string')?.['Hash'] as string | undefined
    if (!hash) throw failed(name, 'its answer ended without a CID', 'transient')
    return hash
  }

  const said = (reply: Reply): string =>
    String((reply.json as { Message?: unknown } | undefined)?.Message ?? '').slice(0, 200)

  return {
    name,
    traits: { takesBytes: true, local: false },
    pin: async (upload, signal) => CID.parse(await (settings.uploadAs === 'car' ? byCar : byAdd)(upload, signal)),
    async unpin(cid, signal) {
      const reply = await rpc('pin/rm', { arg: cid.toString() }, signal, undefined, [500])
      if (reply.status === 500 && !/not pinned/i.test(said(reply)))
        throw failed(name, `it did not unpin: ${said(reply)}`, 'transient')
    },
    async status(cid, signal): Promise<PinState> {
      const reply = await rpc('pin/ls', { arg: cid.toString(), type: 'recursive' }, signal, undefined, [500])
      if (reply.status === 200) return 'pinned'
      if (/not pinned/i.test(said(reply))) return 'missing'
      throw failed(name, `it does not say whether it holds it: ${said(reply)}`, 'transient')
    },
    async probe(signal) {
      await rpc('version', {}, signal)
      // `version` needs no permission; this command needs that of pinning.
      await rpc('pin/ls', { arg: 'bafkqaaa', type: 'recursive' }, signal, undefined, [500])
    },
    close,
  }
}
