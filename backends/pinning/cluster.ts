// IPFS Cluster's REST API: sends the upload as a CAR with one root, then polls its status until
// enough peers report `pinned`.
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { serviceUrl } from '../../src/core/units.ts'
import { authorization, createService, failed, fileForm } from './call.ts'
import type { PinState, Provider, ProviderContext, ProviderKind } from './contract.ts'
import { auth, clocks, gateway, readGateway } from './options.ts'

const options = z.strictObject({
  url: serviceUrl().describe('The REST address, such as http://127.0.0.1:9094.'),
  auth: auth(),
  peers: z.int().min(1).default(1).describe('How many peers must say that they pinned it.'),
  gateway: gateway('By default nowhere.'),
  ...clocks,
})

const firstPollMs = 250
const maxPollMs = 5_000

export const cluster: ProviderKind<typeof options> = {
  use: 'cluster',
  options,
  readBack: (settings) => readGateway(settings.gateway, settings.connectTimeout),
  create: createCluster,
}

function createCluster(settings: z.output<typeof options>, context: ProviderContext): Provider {
  const { name, clock } = context
  const { ask, close } = createService(context, settings, authorization(settings.auth))
  // A trailing slash would cause a redirect, and a streamed body cannot be sent again.
  const base = settings.url.replace(/\/+$/, '')

  async function states(cid: CID, signal: AbortSignal): Promise<string[]> {
    const { json } = await ask('GET', `${base}/pins/${cid}`, signal)
    const peers = (json as { peer_map?: Record<string, { status?: string }> } | undefined)?.peer_map ?? {}
    return Object.values(peers).map(({ status }) => status ?? '')
  }

  async function untilPinned(cid: CID, signal: AbortSignal): Promise<void> {
    for (let waitMs = firstPollMs; ; waitMs = Math.min(maxPollMs, waitMs * 2)) {
      const all = await states(cid, signal)
      if (all.filter((state) => state === 'pinned').length >= settings.peers) return
      const pending = all.filter((state) => /^(pin_queued|pinning|queued|)$/.test(state)).length
      const errors = all.filter((state) => /error/.test(state)).length
      if (errors > 0 && pending === 0) throw failed(name, `${errors} of its peers could not pin it`, 'transient')
      await clock.sleep(waitMs * (0.75 + Math.random() / 2), signal)
    }
  }

  return {
    name,
    traits: { takesBytes: true, local: false },
    async pin(upload, signal) {
      const form = fileForm({
        field: 'file',
        type: 'application/vnd.ipld.car',
        bytes: upload.carBytes,
        content: upload.car(signal),
      })
      const query = new URLSearchParams({ format: 'car', 'stream-channels': 'false', name: upload.name ?? '' })
      const { json } = await ask('POST', `${base}/add?${query}`, signal, form)
      const answered = (Array.isArray(json) ? json : [json]).at(-1) as { cid?: unknown } | undefined
      if (typeof answered?.cid !== 'string') throw failed(name, 'its answer ended without a CID', 'transient')
      const cid = CID.parse(answered.cid)
      await untilPinned(cid, signal)
      return cid
    },
    async unpin(cid, signal) {
      await ask('DELETE', `${base}/pins/${cid}`, signal, { accept: [404] })
    },
    async status(cid, signal): Promise<PinState> {
      const { status } = await ask('GET', `${base}/allocations/${cid}`, signal, { accept: [404] })
      if (status === 404) return 'missing'
      const all = await states(cid, signal)
      if (all.filter((state) => state === 'pinned').length >= settings.peers) return 'pinned'
      return all.some((state) => /error/.test(state)) ? 'failed' : 'queued'
    },
    async probe(signal) {
      await ask('GET', `${base}/id`, signal)
    },
    close,
  }
}
