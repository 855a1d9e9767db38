// Everything that asks an address of the configuration, against one that leads elsewhere: nothing is asked there, and what says who we
// are comes to the named address alone. Upstreams alone follow redirects, within their site (upstream-redirects.test.ts).

import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { PassThrough, Readable } from 'node:stream'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import type { Provider } from '../../backends/pinning/contract.ts'
import { providerKinds } from '../../backends/pinning/index.ts'
import { tierKinds } from '../../backends/tiers/index.ts'
import { upstreamKinds } from '../../backends/upstreams/index.ts'
import { connected } from '../../src/cli/client/connection.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { createTrace } from '../../src/core/wire/trace.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { loadDenylists } from '../../src/deny/load.ts'
import { txtServers } from '../../src/names/dns-query.ts'
import { createSpanExporter, readTraceSettings } from '../../src/observe/tracing.ts'
import { type MemoryUpload, memoryUpload } from '../../src/testing/provider.ts'
import { blockOf, dagOf } from '../../src/testing/upstream.ts'
import { probeTarget } from '../../src/upload/thin.ts'
import { multipart, post } from '../support/adding.ts'
import { noise } from '../support/fixtures.ts'
import { fetchAll, startGateway } from '../support/gateway.ts'
import { createKey } from '../support/ipns.ts'

type Asked = { readonly url: string; readonly headers: IncomingHttpHeaders }
type Place = { readonly port: number; readonly asked: Asked[]; close(): void }

const secret = 'who-we-are-at-the-named-one'
/** To another service of the same machine: by a name, and without a scheme. */
const redirects: readonly (readonly [status: number, to: string])[] = [
  [302, 'http://localhost'],
  [307, '//127.0.0.1'],
]

let named: Place
let other: Place
let location = ''
let status = 302
before(async () => {
  other = await place(() => ({ status: 200 }))
  named = await place((url) => ({ status, location: location + url }))
})
after(() => {
  named.close()
  other.close()
})

type Answer = { readonly status: number; readonly location?: string; readonly body?: string }

async function place(answer: (url: string) => Answer): Promise<Place> {
  const asked: Asked[] = []
  const server: Server = createServer((request, response) => {
    const { url = '', headers } = request
    asked.push({ url, headers })
    const { status, location, body } = answer(url)
    const said = location === undefined ? {} : { location }
    request.resume().once('end', () => response.writeHead(status, said).end(body))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    port: (server.address() as AddressInfo).port,
    asked,
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
}

const common = { name: 'one', userAgent: 'cidgate/test', log: silentLog, clock: systemClock }
const signal = () => new AbortController().signal
const key = createKey()
let upload: MemoryUpload
before(async () => {
  upload = await memoryUpload(noise(5_000, 5))
})

async function callsOfProvider(use: string, options: object): Promise<void> {
  const kind = providerKinds[use]
  assert.ok(kind)
  const context = { ...common, data: '/nonexistent', folders: processFolders }
  const provider: Provider = kind.create(kind.options.parse(options), context)
  const { cid } = upload
  await provider.probe(signal()).catch(() => {})
  await provider.status(cid, signal()).catch(() => {})
  await provider.pin(upload, signal()).catch(() => {})
  await provider.unpin(cid, signal()).catch(() => {})
  await provider.close()
}

async function callsOfUpstream(use: string, options: object): Promise<void> {
  const kind = upstreamKinds[use]
  assert.ok(kind)
  const upstream = kind.create(kind.options.parse(options), common)
  await blockOf(upstream, upload.cid, signal()).catch(() => {})
  await upstream.probe(signal()).catch(() => {})
  await upstream.record?.(key.cid, signal()).catch(() => {})
  if (upstream.traits.dag) {
    const want = { cid: upload.cid, segments: [], scope: 'entity' } as const
    await Array.fromAsync(dagOf(upstream, want, signal())).catch(() => {})
  }
  await upstream.close()
}

async function callsOfBucket(options: object): Promise<void> {
  const kind = tierKinds['s3']
  assert.ok(kind)
  const tier = kind.create(kind.options.parse(options), { ...common, data: '' })
  await tier.put(upload.cid, noise(10, 1)).catch(() => {})
  await tier.get(upload.cid).catch(() => {})
  await tier.probe?.().catch(() => {})
  await tier.close()
}

/** Each asks all that it knows of the place at `url`, and shows the secret there. */
const clients: Readonly<Record<string, (url: string) => Promise<unknown>>> = {
  'a denylist': (url) =>
    loadDenylists([{ url: `${url}/list.deny?key=${secret}`, required: false }], {
      ...common,
      folder: '/nonexistent',
      onChange() {},
    }).then((lists) => lists.close()),
  'DNS over HTTPS': async (url) => {
    const [server] = txtServers([`${url}/dns-query?key=${secret}`], common)
    await server?.lookup('_dnslink.docs.example', signal()).catch(() => {})
    await server?.close()
  },
  'the provider kubo': (url) => callsOfProvider('kubo', { url, auth: { bearer: secret } }),
  'the provider kubo, by add': (url) => callsOfProvider('kubo', { url, uploadAs: 'add', auth: { bearer: secret } }),
  'the provider cluster': (url) => callsOfProvider('cluster', { url, auth: { bearer: secret } }),
  'the provider pinata': (url) => callsOfProvider('pinata', { uploadsUrl: url, apiUrl: url, token: secret }),
  'the provider pinata, in pieces': (url) =>
    callsOfProvider('pinata', { uploadsUrl: url, apiUrl: url, token: secret, resumableAbove: 1 }),
  'the provider filebase': (endpoint) =>
    callsOfProvider('filebase', { endpoint, bucket: 'b', accessKeyId: secret, secretAccessKey: 'x', cidTimeout: 0 }),
  'the provider psa': (url) => callsOfProvider('psa', { url, token: secret }),
  'the provider forward': (url) => callsOfProvider('forward', { url: `${url}/add`, token: secret }),
  'a bucket': (endpoint) =>
    callsOfBucket({ endpoint, bucket: 'b', accessKeyId: secret, secretAccessKey: 'x', timeout: '10s' }),
  'an upstream': (url) => callsOfUpstream('trustless', { url, headers: { authorization: secret } }),
  'an upstream with subdomains': (url) =>
    callsOfUpstream('trustless', { url, redirects: 'subdomains', headers: { authorization: secret } }),
  'an upstream of files': (url) => callsOfUpstream('plain', { url, headers: { authorization: secret } }),
  'an upstream that is a Kubo': (url) => callsOfUpstream('kubo', { url, headers: { authorization: secret } }),
  'a collector of spans': async (url) => {
    const { settings } = readTraceSettings({
      OTEL_EXPORTER_OTLP_ENDPOINT: url,
      OTEL_EXPORTER_OTLP_HEADERS: `authorization=${secret}`,
    })
    assert.ok(settings)
    const exporter = createSpanExporter({ settings, version: '0', clock: systemClock, log: silentLog })
    createTrace({ recorder: exporter }).ask('a question')?.end({}, false)
    await exporter.close()
  },
  'the check of thin mode': (url) =>
    probeTarget({ url: `${url}/add?key=${secret}` }, 'cidgate/test', signal()).catch(() => {}),
  'an upload in thin mode': async (url) => {
    const through = { url: `${url}/add`, authorization: `Bearer ${secret}` }
    const at = await startGateway({ config: { upload: { forwardTo: through }, pinning: { providers: [] } } })
    await post(`${at.url}/add`, multipart([{ body: 'hello' }]))
    await at.close()
  },
  'a path that is passed on': async (url) => {
    const at = await startGateway({ config: { proxy: [{ path: '/there', to: url, sendAuthorization: true }] } })
    const { status: told } = await fetchAll(`${at.url}/there/it`, { authorization: secret })
    assert.equal(told, status, 'the client decides')
    await at.close()
  },
  'the command line': async (url) => {
    const [stdout, stderr] = [new PassThrough(), new PassThrough()]
    const io = { stdin: Readable.from([]), stdout, stderr, environment: { CIDGATE_ADMIN_TOKEN: secret } }
    await connected({ values: { admin: url }, positionals: [], io }, 'admin', async ({ ask }) => {
      await (await ask('/pins')).body.dump()
      return 0
    })
  },
}

describe('redirecting response', () => {
  beforeEach(() => {
    named.asked.length = 0
    other.asked.length = 0
  })

  for (const [client, asks] of Object.entries(clients))
    test(`${client} → not followed`, async () => {
      for (const [code, to] of redirects) {
        status = code
        location = `${to}:${other.port}`
        await asks(`http://127.0.0.1:${named.port}`)
      }
      assert.ok(named.asked.length >= redirects.length, 'each time the named one was asked')
      assert.ok(JSON.stringify(named.asked).includes(secret), 'and was told who we are')
      assert.deepEqual(other.asked, [])
    })
})

describe('docs/security.md', () => {
  const root = fileURLToPath(new URL('../../', import.meta.url))
  const textOf = (file: string): string => readFileSync(join(root, file), 'utf8')
  /** What opens connections, among what is imported of each module. */
  const opening: Readonly<Record<string, RegExp>> = {
    undici: /^(Agent|Pool|Client|request|fetch|stream|pipeline|connect|upgrade|buildConnector)$/,
    'node:http': /^(Agent|request|get)$/,
    'node:https': /./,
    'node:http2': /^connect$/,
    'node:net': /^(connect|createConnection)$/,
    'node:tls': /^connect$/,
    'node:dgram': /^createSocket$/,
  }
  const others = /\bimport\('@keyv\/redis'\)|[^.\w]fetch\(\w+, \{\n/

  function opensConnections(text: string): boolean {
    const imports = text.matchAll(/^import \{([^}]*)\} from '([^']+)'/gm)
    const named = [...imports].flatMap(([, names = '', from = '']) =>
      names.split(',').map((name) => ({ name: name.trim().replace(/ as .*/, ''), from })),
    )
    return named.some(({ name, from }) => opening[from]?.test(name) === true) || others.test(text)
  }

  test('lists every file that opens connections, with its targets', () => {
    const files = ['src', 'backends'].flatMap((folder) =>
      readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
        .filter((name) => name.endsWith('.ts') && !name.startsWith('testing/'))
        .map((name) => `${folder}/${name}`),
    )
    const [, section = ''] = /^## Where the gateway connects to\n([\s\S]*?)^## /m.exec(textOf('docs/security.md')) ?? []
    const told = [...section.matchAll(/`((?:src|backends)\/[\w./-]+\.ts)`/g)].map(([, file]) => file)
    assert.deepEqual(told.toSorted(), files.filter((file) => opensConnections(textOf(file))).toSorted())
  })
})

describe("addresses in a service's response are not trusted", () => {
  const open: Place[] = []
  afterEach(() => {
    for (const one of open.splice(0)) one.close()
  })

  test('pinata: pieces go to the configured host only', async () => {
    other.asked.length = 0
    const service = await place(() => ({ status: 201, location: `http://127.0.0.1:${other.port}/upload` }))
    open.push(service)
    const url = `http://127.0.0.1:${service.port}`
    await callsOfProvider('pinata', { uploadsUrl: url, apiUrl: url, token: secret, resumableAbove: 1 })
    assert.ok(service.asked.length > 0)
    assert.deepEqual(other.asked, [])
  })

  test('psa: peers named by the service are not dialed', async () => {
    other.asked.length = 0
    const delegates = [`/ip4/127.0.0.1/tcp/${other.port}/http`, `/dns4/localhost/tcp/${other.port}/http`]
    const pin = { requestid: 'one', status: 'pinned', pin: { cid: String(upload.cid), origins: delegates }, delegates }
    const body = JSON.stringify({ ...pin, results: [pin] })
    const service = await place(() => ({ status: 200, body }))
    open.push(service)
    await callsOfProvider('psa', { url: `http://127.0.0.1:${service.port}`, token: secret })
    assert.ok(service.asked.length > 3)
    assert.deepEqual(other.asked, [])
  })

  test('forward: gateway on another origin → no token, no headers', async () => {
    other.asked.length = 0
    const add = await place(() => ({ status: 200 }))
    open.push(add)
    const url = `http://127.0.0.1:${add.port}/add`
    const headers = { 'x-account': `${secret}-account` }
    const gateway = { url: `http://127.0.0.1:${other.port}`, headers: { 'x-reader': 'for the gateway' } }
    await callsOfProvider('forward', { url, token: secret, headers, gateway })
    assert.ok(JSON.stringify(add.asked).includes(`Bearer ${secret}`))
    assert.ok(other.asked.length > 0)
    assert.ok(other.asked.every((one) => one.headers['x-reader'] === 'for the gateway'))
    assert.doesNotMatch(JSON.stringify(other.asked), new RegExp(secret))
  })

  test('forward: gateway on the same origin → token and headers', async () => {
    const service = await place(() => ({ status: 200 }))
    open.push(service)
    await callsOfProvider('forward', { url: `http://127.0.0.1:${service.port}/add`, token: secret })
    const looks = service.asked.filter(({ url }) => url.startsWith('/ipfs/'))
    assert.ok(looks.length > 0)
    assert.ok(looks.every(({ headers }) => headers.authorization === `Bearer ${secret}`))
  })
})
