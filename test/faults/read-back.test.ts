// Fault: the machine that took uploads is gone, and no upstream is configured for them. An instance with only the configuration
// reads what a provider holds from that provider.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { multipart, post } from '../support/adding.ts'
import { noise } from '../support/fixtures.ts'
import { fetchAll, type StartOptions, startGateway } from '../support/gateway.ts'
import * as services from '../support/providers.ts'
import { type StandIn, startStandIn, token } from '../support/providers.ts'
import { closingAfterEach } from '../support/started.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const started = closingAfterEach()

/** Its first byte is the smallest part of it: several blocks, below a root that is none of them. */
const large = noise(3_000_000, 21)
const small = noise(20_000, 22)

const start = (providers: readonly Record<string, unknown>[], more: Partial<StartOptions> = {}) =>
  started(
    startGateway({
      ...more,
      config: {
        pinning: { minConfirmations: 1, probeEvery: 0, providers },
        cache: { responses: { maxBytes: 0 } },
        ...more.config,
      },
    }),
  )

async function add(url: string, body: Uint8Array): Promise<string> {
  const { status, json, body: text } = await post(`${url}/add`, multipart([{ fileName: 'a', body }]))
  assert.equal(status, 200, text)
  return (json['cids'] as [string])[0]
}

type ReadBackService = { readonly service: StandIn; readonly gateway: ProgrammableUpstream }
type Case = {
  readonly api: services.Api
  /** Its gateway gives files and nothing else. */
  readonly plain?: boolean
  readonly provider: (at: { readonly url: string; readonly gateway: string }) => Record<string, unknown>
}

const cases: Readonly<Record<string, Case>> = {
  'kubo, by its RPC': {
    api: services.kuboApi,
    provider: ({ url }) => ({ use: 'kubo', url, auth: { bearer: token } }),
  },
  'kubo, by its gateway': {
    api: services.kuboApi,
    provider: ({ url, gateway }) => ({ use: 'kubo', url, auth: { bearer: token }, gateway }),
  },
  cluster: {
    api: services.clusterApi,
    provider: ({ url, gateway }) => ({ use: 'cluster', url, auth: { bearer: token }, gateway }),
  },
  forward: {
    api: services.forwardApi,
    provider: ({ url, gateway }) => ({ use: 'forward', url: `${url}/add`, token, gateway }),
  },
  filebase: {
    api: services.filebaseApi,
    provider: ({ url, gateway }) => ({
      use: 'filebase',
      endpoint: url,
      bucket: 'b',
      accessKeyId: token,
      secretAccessKey: 'x',
      gateway,
    }),
  },
  pinata: {
    api: services.pinataApi,
    provider: ({ url, gateway }) => ({ use: 'pinata', uploadsUrl: url, apiUrl: url, token, gateway }),
  },
  'pinata, by a gateway that gives files': {
    api: services.pinataApi,
    plain: true,
    provider: ({ url, gateway }) => ({
      use: 'pinata',
      uploadsUrl: url,
      apiUrl: url,
      token,
      gateway: { url: gateway, use: 'plain', headers: { 'x-pinata-gateway-token': 'k' } },
    }),
  },
}

async function readBackService({ api, plain = false }: Case): Promise<ReadBackService> {
  const service = await started(startStandIn(api))
  const gateway = await started(startUpstream({ blocks: service.blocks, plain }))
  return { service, gateway }
}

for (const [name, one] of Object.entries(cases))
  describe(name, () => {
    test('new instance → reads an upload from its provider', async () => {
      const { service, gateway } = await readBackService(one)
      const provider = { name: 'home', ...one.provider({ url: service.url, gateway: gateway.url }) }
      const first = await start([provider])
      const bodies = one.plain ? [small] : [small, large]
      const paths: string[] = []
      for (const body of bodies) paths.push(await add(first.url, body))
      await first.close()

      const second = await start([provider])
      for (const [index, path] of paths.entries()) {
        const { status, body, headers } = await fetchAll(second.url + path)
        assert.equal(status, 200, body.toString(undefined, 0, 500))
        assert.ok(body.equals(bodies[index] as Uint8Array))
        assert.match(String(headers['cache-status']), /detail="home"/)
      }
    })
  })
