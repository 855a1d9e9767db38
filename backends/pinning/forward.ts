// Another service with the same POST /add, such as another cidgate. It computes the CID itself, and
// its CID is compared as for every provider.
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { parseCid } from '../../src/core/cid.ts'
import { headerToken, serviceUrl } from '../../src/core/units.ts'
import { createService, failed, fileForm } from './call.ts'
import type { PinState, Provider, ProviderContext, ProviderKind, ReadBack } from './contract.ts'
import { clocks, gateway, readGateway } from './options.ts'

const options = z.strictObject({
  url: serviceUrl().describe('The full URL of its /add.'),
  gateway: gateway('By default where its /add is.'),
  token: headerToken().optional().describe('Sent as Authorization: Bearer.'),
  headers: z.record(z.string(), z.string()).default({}).describe('Sent with every request.'),
  ...clocks,
})

export const forward: ProviderKind<typeof options> = { use: 'forward', options, readBack, create: createForward }

function readBack({
  gateway: said,
  url: add,
  headers,
  connectTimeout,
}: z.output<typeof options>): ReadBack | false | undefined {
  if (said !== undefined) return readGateway(said, connectTimeout)
  return readGateway({ url: nextToAdd(add), use: 'trustless', headers }, connectTimeout)
}

const nextToAdd = (add: string): string => new URL('.', add).href

function createForward(settings: z.output<typeof options>, context: ProviderContext): Provider {
  const { name } = context
  const { ask, close } = createService(context, settings, {
    ...settings.headers,
    ...(settings.token !== undefined && { authorization: `Bearer ${settings.token}` }),
  })
  const place = readBack(settings)
  const home = place ? place.options : { url: nextToAdd(settings.url) }
  // A gateway on another origin may belong to another party, so it gets neither the token nor the
  // headers of /add.
  const isElsewhere = new URL(home.url).origin !== new URL(settings.url).origin
  const gateway = isElsewhere ? createService(context, settings, {}) : undefined
  const askHome = gateway?.ask ?? ask

  return {
    name,
    traits: { takesBytes: true, local: false },
    async pin(upload, signal) {
      const form = fileForm({
        field: 'data',
        type: 'application/octet-stream',
        bytes: upload.bytes,
        content: upload.file(signal),
      })
      const loop = upload.via === undefined ? {} : { 'cdn-loop': upload.via }
      const target = new URL(settings.url)
      if (upload.name !== undefined) target.searchParams.set('name', upload.name)
      const { json } = await ask('POST', target, signal, { ...form, headers: { ...loop, ...form.headers } })
      const [answered] = (json as { cids?: unknown[] } | undefined)?.cids ?? []
      const cid = typeof answered === 'string' ? cidIn(answered) : undefined
      if (!cid) throw failed(name, 'its answer names no CID', 'transient')
      return cid
    },
    // The /add API cannot undo an upload.
    unpin: async () => {},
    async status(cid, signal): Promise<PinState> {
      const target = `${home.url.replace(/\/+$/, '')}/ipfs/${cid}`
      const headers = { ...(home['headers'] as Record<string, string> | undefined) }
      const { status } = await askHome('HEAD', target, signal, { headers, accept: [404, 410, 412] })
      return status === 200 ? 'pinned' : 'missing'
    },
    async probe(signal) {
      // An upload without a body is refused as incomplete, or because of the token, which is what
      // the probe tests.
      await ask('POST', settings.url, signal, { accept: [400, 411, 415] })
    },
    async close() {
      await Promise.all([close(), gateway?.close()])
    },
  }
}

/** Accepts `/ipfs/<cid>`, `ipfs://<cid>` or a bare CID. */
function cidIn(answered: string): CID | undefined {
  return parseCid(answered.replace(/^(?:\/?ipfs\/|ipfs:\/\/)/, '').split('/')[0] ?? '')
}
