// Any IPFS Pinning Service API, by CID. It transfers no bytes: the service fetches them from the
// network, so it can never be the only provider. Looks for an existing pin first, because a second
// request would create a second pin.
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { headerToken, serviceUrl } from '../../src/core/units.ts'
import { createService, failed } from './call.ts'
import type { PinState, Provider, ProviderContext, ProviderKind } from './contract.ts'
import { clocks, gateway, readGateway } from './options.ts'

/** Validates the form only: the supported transports are up to the service. */
const multiaddr =
  /^\/(?:ip4|ip6|dns|dns4|dns6|dnsaddr)\/[^/\s]+(?:\/[a-z0-9-]+(?:\/[^/\s]+)?)*\/p2p\/[1-9A-HJ-NP-Za-km-z]{20,}$/

const options = z.strictObject({
  url: serviceUrl().describe('The base address of the API; /pins is added to it.'),
  token: headerToken().describe('The access token.'),
  origins: z
    .array(
      z.string().regex(multiaddr, { error: 'expected a multiaddr such as /dns4/example.org/tcp/4001/p2p/12D3Koo…' }),
    )
    .max(20)
    .default([])
    .describe('Multiaddrs where the content can be fetched from, with /p2p/….'),
  gateway: gateway('By default nowhere.'),
  ...clocks,
})

const firstPollMs = 500
const maxPollMs = 10_000
const allStates = 'queued,pinning,pinned,failed'

type ServicePin = {
  readonly requestid: string
  readonly status: string
  readonly cid: string | undefined
  readonly details: string | undefined
}

export const psa: ProviderKind<typeof options> = {
  use: 'psa',
  options,
  fetchesByCid: true,
  readBack: (settings) => readGateway(settings.gateway, settings.connectTimeout),
  create: createPsa,
}

function createPsa(settings: z.output<typeof options>, context: ProviderContext): Provider {
  const { name, clock } = context
  const { ask, close } = createService(context, settings, { authorization: `Bearer ${settings.token}` })
  const base = settings.url.replace(/\/+$/, '')

  async function known(cid: CID, signal: AbortSignal): Promise<ServicePin[]> {
    const { json } = await ask('GET', `${base}/pins?cid=${cid}&status=${allStates}&limit=1000`, signal)
    const results = (json as { results?: unknown[] } | undefined)?.results ?? []
    return results.map(read)
  }

  async function remove(pins: readonly ServicePin[], signal: AbortSignal): Promise<void> {
    for (const { requestid } of pins)
      await ask('DELETE', `${base}/pins/${encodeURIComponent(requestid)}`, signal, { accept: [404] })
  }

  function read(value: unknown): ServicePin {
    const { requestid, status, pin, info } = (value ?? {}) as Record<string, unknown>
    if (typeof requestid !== 'string' || typeof status !== 'string')
      throw failed(name, 'its answer is not a pin', 'transient')
    const details = (info as { status_details?: unknown } | undefined)?.status_details
    return {
      requestid,
      status,
      cid: (pin as { cid?: string } | undefined)?.cid,
      details: typeof details === 'string' ? details : undefined,
    }
  }

  return {
    name,
    traits: { takesBytes: false, local: false },
    async pin(upload, signal) {
      const { cid } = upload
      const had = await known(cid, signal)
      let pin = had.find(({ status }) => status === 'pinned') ?? had.find(({ status }) => status !== 'failed')
      // The service does not retry a failed pin, which would remain next to the new one.
      if (!pin) await remove(had, signal)
      pin ??= read(
        (
          await ask(
            'POST',
            `${base}/pins`,
            signal,
            json({ cid: cid.toString(), name: upload.name, origins: settings.origins }),
          )
        ).json,
      )
      for (let waitMs = firstPollMs; pin.status !== 'pinned'; waitMs = Math.min(maxPollMs, waitMs * 2)) {
        if (pin.status === 'failed')
          throw failed(
            name,
            `it could not fetch the content${pin.details ? `: ${pin.details.slice(0, 200)}` : ''}`,
            'transient',
          )
        await clock.sleep(waitMs * (0.75 + Math.random() / 2), signal)
        const reply = await ask('GET', `${base}/pins/${encodeURIComponent(pin.requestid)}`, signal, { accept: [404] })
        // Some services need a while to find a new pin; the next attempt looks again.
        if (reply.status === 404) throw failed(name, 'it does not know the pin that was requested', 'transient')
        pin = read(reply.json)
      }
      // Services spell CIDs differently; the multihash and the codec must be the same.
      return pin.cid === undefined ? cid : same(CID.parse(pin.cid), cid) ? cid : CID.parse(pin.cid)
    },
    async unpin(cid, signal) {
      await remove(await known(cid, signal), signal)
    },
    async status(cid, signal): Promise<PinState> {
      const all = (await known(cid, signal)).map(({ status }) => status)
      if (all.includes('pinned')) return 'pinned'
      if (all.some((status) => status === 'queued' || status === 'pinning')) return 'queued'
      return all.length > 0 ? 'failed' : 'missing'
    },
    async probe(signal) {
      await ask('GET', `${base}/pins?limit=1`, signal)
    },
    close,
  }
}

const json = (body: object) => ({ headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) })

const same = (one: CID, other: CID): boolean =>
  one.code === other.code && Buffer.compare(one.multihash.bytes, other.multihash.bytes) === 0
