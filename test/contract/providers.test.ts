// Every provider on the suite, against stand-ins with the shapes the real services have on the wire; and what each makes of
// a service that misbehaves.
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'
import type { Provider, ProviderContext } from '../../backends/pinning/contract.ts'
import { createEmbedded } from '../../backends/pinning/embedded.ts'
import { providerKinds } from '../../backends/pinning/index.ts'
import { parseConfig } from '../../src/config/load.ts'
import { type Clock, systemClock } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { type MemoryUpload, memoryUpload, providerContract, providerFailure } from '../../src/testing/provider.ts'
import { noise } from '../support/fixtures.ts'
import * as services from '../support/providers.ts'
import { type Answer, type Api, type StandIn, startStandIn, token } from '../support/providers.ts'

/** Waits between tries are a fiftieth of what they are, and clocks are what they are. */
const hurried: Clock = { ...systemClock, sleep: (ms, own) => systemClock.sleep(ms / 50, own) }
const context: ProviderContext = {
  name: 'one',
  userAgent: 'cidgate/test',
  data: '/nonexistent',
  folders: processFolders,
  log: silentLog,
  clock: hurried,
}
const otherCid = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
const signal = () => new AbortController().signal

let upload: MemoryUpload
before(async () => {
  upload = await memoryUpload(noise(700_000, 5))
})

let service: StandIn
const made: Provider[] = []
afterEach(async () => {
  for (const provider of made.splice(0)) await provider.close()
  await service?.close()
})

type Set = {
  readonly use: string
  readonly api: Api
  readonly settings: (url: string, secret: string) => Record<string, unknown>
  /** The call that carries the upload, among all that pinning makes. */
  readonly carries: (call: services.Call) => boolean
  readonly idle?: Record<string, unknown>
}

const isPost = (call: services.Call) => call.method === 'POST'
const sets: Record<string, Set> = {
  kubo: {
    use: 'kubo',
    api: services.kuboApi,
    settings: (url, secret) => ({ url, auth: { bearer: secret } }),
    carries: isPost,
  },
  'kubo by add': {
    use: 'kubo',
    api: services.kuboApi,
    settings: (url, secret) => ({ url, auth: { bearer: secret }, uploadAs: 'add' }),
    carries: isPost,
  },
  cluster: {
    use: 'cluster',
    api: services.clusterApi,
    settings: (url, secret) => ({ url, auth: { bearer: secret } }),
    carries: isPost,
  },
  pinata: {
    use: 'pinata',
    api: services.pinataApi,
    settings: (url, secret) => ({ uploadsUrl: url, apiUrl: url, token: secret }),
    carries: isPost,
  },
  'pinata in pieces': {
    use: 'pinata',
    api: services.pinataApi,
    settings: (url, secret) => ({
      uploadsUrl: url,
      apiUrl: url,
      token: secret,
      resumableAbove: 1000,
      chunkBytes: 262_144,
    }),
    carries: (call) => call.method === 'PATCH' || call.method === 'POST',
  },
  filebase: {
    use: 'filebase',
    api: services.filebaseApi,
    settings: (endpoint, accessKeyId) => ({
      endpoint,
      bucket: 'b',
      accessKeyId,
      secretAccessKey: 'the-other-secret',
      cidTimeout: '5s',
    }),
    carries: (call) => call.method === 'PUT',
  },
  psa: {
    use: 'psa',
    api: services.psaApi,
    settings: (url, secret) => ({ url: `${url}/psa`, token: secret }),
    carries: isPost,
  },
  forward: {
    use: 'forward',
    api: services.forwardApi,
    settings: (url, secret) => ({ url: `${url}/add`, token: secret }),
    carries: isPost,
  },
}

// A service that answers has time for it, however busy this machine is; one that is silent is not waited for long.
const [patient, impatient] = ['10s', '400ms']

async function make(set: Set, patience = patient): Promise<Provider> {
  service = await startStandIn(set.api)
  return connect(set, token, patience)
}

function connect({ use, settings }: Set, secret: string, patience = patient): Provider {
  const kind = providerKinds[use]
  assert.ok(kind)
  const said = { use, name: 'one', ...settings(service.url, secret), idleTimeout: patience, connectTimeout: patience }
  // As a whole configuration gives them: what it keeps for itself is no option of a provider. One that fetches is not alone.
  const [entry] = parseConfig({ retrieval: { upstreams: [] }, pinning: { providers: [said, { use: 'embedded' }] } })
    .pinning.providers
  const provider = kind.create(entry?.options, context)
  made.push(provider)
  return provider
}

const failure = (work: Promise<unknown>): Promise<Failure> => providerFailure(work, [token, 'the-other-secret'])

const faults: [name: string, answer: Answer, expected: string][] = [
  ['429 with Retry-After', { status: 429, headers: { 'retry-after': '7' } }, 'transient'],
  ['429 without', { status: 429 }, 'transient'],
  ['a page of a proxy', { status: 502, text: '<html>Bad gateway</html>' }, 'transient'],
  ['500', { status: 500, json: { Message: 'something', Code: 0, Type: 'error' } }, 'transient'],
  ['402', { status: 402, json: { error: { reason: 'INSUFFICIENT_FUNDS' } } }, 'quota'],
  ['413', { status: 413, text: 'too large' }, 'content'],
  ['401', { status: 401, json: { error: 'no' } }, 'auth'],
  ['an answer that is cut', 'cut', 'transient'],
  ['silence', 'silent', 'transient'],
]

providerContract('embedded', async () => {
  const data = await mkdtemp(join(tmpdir(), 'cidgate-provider-'))
  const provider = createEmbedded({}, { ...context, data })
  return {
    provider,
    async stop() {
      await provider.close()
      await rm(data, { recursive: true })
    },
  }
})

for (const [name, set] of Object.entries(sets)) {
  providerContract(name, async () => ({
    provider: await make(set),
    stranger: connect(set, 'a-wrong-secret'),
    // Filebase's S3 has no names.
    ...(set.use !== 'filebase' && { nameOf: async (cid) => service.names.get(String(cid)) }),
    // It has no way to take something back, and no option for how a file becomes blocks.
    ...(set.use === 'forward' && { keepsAll: true, profiles: ['unixfs-v1-2025'] }),
    stop: async () => {},
  }))
  describe(name, () => {
    test('response with another CID → reported, not replaced', async () => {
      const provider = await make(set)
      service.otherCid = otherCid
      assert.equal(String(await provider.pin(upload, signal())), otherCid)
    })
    for (const [fault, answer, expected] of faults) {
      test(`${fault}: ${expected}`, async () => {
        const provider = await make(set, answer === 'silent' ? impatient : patient)
        service.script = (call) => (set.carries(call) ? answer : undefined)
        const error = await failure(provider.pin(upload, signal()))
        assert.equal(error.facts['class'], expected)
        if (fault === '429 with Retry-After') assert.equal(error.retryAfterMs, 7000)
        // After any failure the next try reads the same bytes from the beginning.
        service.script = undefined
        const again = answer === 'silent' ? connect(set, token) : provider
        assert.equal(String(await again.pin(upload, signal())), String(upload.cid))
      })
    }
    test('secrets repeated by a service → removed from errors', async () => {
      const provider = await make(set)
      const base64 = Buffer.from(token).toString('base64')
      const secrets = [token.slice(0, -2), base64, ...(set.use === 'filebase' ? ['the-other-secret'] : [])]
      // As Basic sends it, and cut off where the service pleases, too.
      const said = `${secrets.join(', ')}, ${token}…`
      for (const status of [500, 400, 401]) {
        for (const json of [{ error: { message: said } }, { error: said }, { Message: said }]) {
          service.script = ({ headers }) => ({
            status,
            json: JSON.parse(JSON.stringify(json).replace('…', `… ${headers.authorization}`)),
          })
          const calls: Promise<unknown>[] = [provider.pin(upload, signal()), provider.unpin(upload.cid, signal())]
          calls.push(provider.status(upload.cid, signal()), provider.probe(signal()))
          for (const ended of await Promise.allSettled(calls)) {
            const error = ended.status === 'rejected' ? ended.reason : undefined
            const text = inspect(error, { depth: 10 })
            for (const secret of secrets) assert.ok(!text.includes(secret), text)
          }
        }
      }
    })
    test('abort → stops at once, frees the socket', async () => {
      const provider = await make(set)
      service.script = () => 'silent'
      const controller = new AbortController()
      const reason = new Failure('cancelled', 'enough', { source: 'client' })
      const work = provider.pin(upload, controller.signal).then(
        () => assert.fail(),
        (error: unknown) => error,
      )
      await sleep(50)
      const began = performance.now()
      controller.abort(reason)
      assert.equal(await work, reason)
      assert.ok(performance.now() - began < 1500)
      const until = Date.now() + 2000
      while (service.sockets > 0 && Date.now() < until) await sleep(5)
      assert.equal(service.sockets, 0)
    })
  })
}

describe('secrets in provider messages', () => {
  const cases: readonly (readonly [secret: string, said: string, told: string])[] = [
    ['the', 'the token is unauthorized', 'the token is unauthorized'],
    ['the', 'no "Authorization: Bearer the"', 'no "Authorization: Bearer [hidden]"'],
    ['the', 'Bearer%20the and Bearer these', 'Bearer%20[hidden] and Bearer these'],
    ['kubo', 'kubo: kubo-rpc refused', 'kubo: kubo-rpc refused'],
    ['401', 'it answered 401', 'it answered 401'],
    ['hunter2', 'hunter2 is not hunter22, token=hunter2', '[hidden] is not hunter22, token=[hidden]'],
    ['password', 'passwords: no password', 'passwords: no [hidden]'],
    ['kubo-one-and-more', 'no kubo-one-and…, xkubo-one-and-morex', 'no [hidden]…, x[hidden]x'],
    ['AbCdEfGhIjKlMnOpQr', '\\nAbCdEfGhIjKlMnOpQr, AbCdEfGhIj***', '\\n[hidden], [hidden]***'],
  ]
  for (const [secret, said, told] of cases)
    test(`${secret} in ${said} → removed`, async () => {
      const psa = providerKinds['psa']
      assert.ok(psa)
      for (const name of ['one', 'kubo', 'kubo-one']) {
        service = await startStandIn(services.psaApi)
        service.script = () => ({ status: 400, json: { error: said } })
        const provider = psa.create(psa.options.parse({ url: service.url, token: secret }), { ...context, name })
        made.push(provider)
        const { message, stack } = await providerFailure(provider.probe(signal()))
        assert.equal(message, `provider ${name}: it answered 400: ${told}`)
        assert.ok(stack?.includes(message))
        await service.close()
      }
    })
})

describe('failures after a 200', () => {
  test('kubo: failed pin, trailer, missing last line → failure', async () => {
    const provider = await make(sets['kubo'] as Set)
    const root = { Cid: { '/': String(upload.cid) } }
    for (const answer of [
      { text: `${JSON.stringify({ Root: { ...root, PinErrorMsg: 'block not found' } })}\n` },
      { text: `${JSON.stringify({ Root: { ...root, PinErrorMsg: '' } })}\n`, trailer: 'it broke' },
      { text: '' },
    ]) {
      service.script = () => answer
      assert.equal((await failure(provider.pin(upload, signal()))).facts['class'], 'transient')
    }
  })
  test('kubo: error after a 200 → no password in it', async () => {
    const basic = 'admin:p4ss/w\u00f6rd'
    const [wire, password] = [Buffer.from(basic).toString('base64'), 'p4ss/w\u00f6rd']
    const provider = await make({ ...(sets['kubo'] as Set), settings: (url) => ({ url, auth: { basic } }) })
    const root = { Cid: { '/': String(upload.cid) }, PinErrorMsg: `${wire} and ${password}` }
    const answers: Answer[] = [
      { text: `${JSON.stringify({ Root: root })}\n` },
      { text: '{}', trailer: `Basic ${wire}, ${encodeURIComponent(password)}` },
      { status: 500, json: { Message: `${'x'.repeat(190)} ${basic}` } },
    ]
    for (const answer of answers) {
      service.script = () => answer
      const { message } = await failure(provider.pin(upload, signal()))
      assert.match(message, /\[hidden\]/)
      assert.doesNotMatch(message, /p4ss|YWRtaW46/)
    }
  })
  test('kubo by add: every option is explicit', async () => {
    const provider = await make(sets['kubo by add'] as Set)
    await provider.pin(upload, signal())
    const { query } = service.calls.find(({ path }) => path.endsWith('/add')) as services.Call
    assert.deepEqual(Object.fromEntries(query), {
      'cid-version': '1',
      'raw-leaves': 'true',
      chunker: 'size-1048576',
      'max-file-links': '1024',
      hash: 'sha2-256',
      trickle: 'false',
      inline: 'false',
      pin: 'true',
      'wrap-with-directory': 'false',
      progress: 'false',
    })
  })
  test('cluster: peers failed to pin → failure', async () => {
    const provider = await make(sets['cluster'] as Set)
    service.script = ({ path }) =>
      path.startsWith('/pins/') ? { json: { peer_map: { a: { status: 'pin_error' } } } } : undefined
    assert.match((await failure(provider.pin(upload, signal()))).message, /could not pin/)
  })
  test('pinata: stored as private, or plan lacks it → failure', async () => {
    const provider = await make(sets['pinata'] as Set)
    service.script = () => ({ json: { data: { cid: String(upload.cid), network: 'private' } } })
    assert.equal((await failure(provider.pin(upload, signal()))).facts['class'], 'content')
    service.script = () => ({ status: 403, json: { error: { reason: 'PAID_FEATURE_ONLY' } } })
    assert.equal((await failure(provider.pin(upload, signal()))).facts['class'], 'quota')
  })
  test('pinata: upload name, single request and pieces', async () => {
    for (const set of ['pinata', 'pinata in pieces']) {
      const base = sets[set] as Set
      for (const [uploadName, called] of [
        [undefined, 'cidgate'],
        ['evidence of a court', 'evidence of a court'],
      ]) {
        const settings = (url: string, secret: string) => ({
          ...base.settings(url, secret),
          ...(uploadName && { uploadName }),
        })
        const provider = await make({ ...base, settings })
        await provider.pin(upload, signal())
        const [begun = assert.fail()] = service.calls
        const metadata = String(begun.headers['upload-metadata'] ?? '')
        const inPieces = Buffer.from(/filename ([^,]+)/.exec(metadata)?.[1] ?? '', 'base64').toString()
        assert.equal(set === 'pinata' ? String(services.partsOf(begun)['name']) : inPieces, called)
        await provider.close()
        await service.close()
      }
    }
  })
  test('pinata: response without CID → looked up in the list', async () => {
    for (const set of ['pinata', 'pinata in pieces']) {
      const provider = await make(sets[set] as Set)
      let looks = 0
      service.script = ({ method, path, query }) => {
        if (path === '/v3/files/public' && ++looks > 2)
          return {
            json: {
              data: {
                files: [
                  { id: 'x', cid: otherCid },
                  { id: 'y', cid: query.get('cid') },
                ],
              },
            },
          }
        if (path === '/v3/files/public') return { json: { data: { files: [{ id: 'x', cid: otherCid }] } } }
        if (method === 'PATCH') return { status: 204 }
        return path === '/v3/files' && set === 'pinata' ? { json: { data: { network: 'public' } } } : undefined
      }
      assert.equal(String(await provider.pin(upload, signal())), String(upload.cid))
      assert.equal(looks, 3)
      service.script = (call) =>
        call.path === '/v3/files/public'
          ? { json: { data: { files: [] } } }
          : call.method === 'PATCH'
            ? { status: 204 }
            : set === 'pinata'
              ? { json: {} }
              : undefined
      assert.match((await failure(provider.pin(upload, signal()))).message, /named no CID, and does not list it/)
      await service.close()
    }
  })
  test('filebase: bucket not on the IPFS network → failure', async () => {
    const provider = await make(sets['filebase'] as Set)
    service.otherCid = 'none'
    const { message, facts } = await failure(provider.pin(upload, signal()))
    assert.match(message, /not on the IPFS network/)
    // It may yet be: an upload is not lost over it, and its bytes are not sent again to find out.
    assert.equal(facts['class'], 'transient')
    await failure(provider.pin(upload, signal()))
    assert.equal(service.calls.filter(({ method }) => method === 'PUT').length, 1)
  })
  test('filebase: object and CID appear later → polled', async () => {
    const provider = await make(sets['filebase'] as Set)
    let looks = 0
    const states: Answer[] = [{ status: 404 }, {}, {}]
    service.script = ({ method }) => (method === 'HEAD' ? states[looks++] : undefined)
    assert.equal(String(await provider.pin(upload, signal())), String(upload.cid))
    assert.equal(looks, 4)
    assert.equal(service.calls.filter(({ method }) => method === 'PUT').length, 1)
  })
  test('filebase: complete upload, lost response → success', async () => {
    const provider = await make(sets['filebase'] as Set, impatient)
    for (const answer of ['cut', 'silent'] as const) {
      service.script = (call) => {
        if (call.method !== 'PUT') return undefined
        service.pins.set(String(upload.cid), String(upload.cid))
        return answer
      }
      assert.equal(String(await provider.pin(upload, signal())), String(upload.cid), answer)
      assert.equal(service.calls.filter(({ method }) => method === 'PUT').length, 1, answer)
      service.calls.length = 0
    }
  })
  test('filebase: object missing after upload → sent again', async () => {
    const provider = await make(sets['filebase'] as Set)
    service.script = ({ method }) => (method === 'HEAD' ? { status: 404 } : undefined)
    assert.match((await failure(provider.pin(upload, signal()))).message, /does not show up after/)
    service.script = undefined
    assert.equal(String(await provider.pin(upload, signal())), String(upload.cid))
    assert.equal(service.calls.filter(({ method }) => method === 'PUT').length, 2)
  })
  test('filebase: waits no longer than the caller', async () => {
    const provider = await make(sets['filebase'] as Set)
    const controller = new AbortController()
    const reason = new Error('the deadline')
    service.script = ({ method }) => {
      if (method === 'HEAD') controller.abort(reason)
      return method === 'HEAD' ? {} : undefined
    }
    await assert.rejects(provider.pin(upload, controller.signal), (error) => error === reason)
  })
  test('filebase: long but active upload exceeds `idle` → succeeds', async () => {
    const provider = await make(sets['filebase'] as Set, impatient)
    async function* slowly(source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
      const all = Buffer.concat(await Array.fromAsync(source))
      const size = Math.ceil(all.length / 8)
      for (let at = 0; at < all.length; at += size) {
        yield all.subarray(at, at + size)
        await sleep(70)
      }
    }
    const slow = { ...upload, car: (own: AbortSignal) => slowly(upload.car(own)) }
    assert.equal(String(await provider.pin(slow, signal())), String(upload.cid))
  })
  test('psa: named pin, never two of one CID; failed fetch', async () => {
    const provider = await make(sets['psa'] as Set)
    await provider.pin({ ...upload, name: 'evidence' }, signal())
    await provider.pin(upload, signal())
    const asked = service.calls.filter(({ method }) => method === 'POST')
    assert.equal(asked.length, 1)
    assert.equal(JSON.parse(String(asked[0]?.body)).name, 'evidence')
    service.script = ({ method }) =>
      method === 'POST'
        ? { status: 202, json: { requestid: 'r', status: 'failed', info: { status_details: 'no peers' } } }
        : undefined
    service.pins.clear()
    assert.match((await failure(provider.pin(upload, signal()))).message, /no peers/)
    assert.equal(provider.traits.takesBytes, false)
  })
  test('psa: failed pin → deleted before the next request', async () => {
    const provider = await make(sets['psa'] as Set)
    const pins = new Map<string, string>()
    let count = 0
    const show = (requestid: string) => ({ requestid, status: pins.get(requestid), pin: { cid: String(upload.cid) } })
    service.script = ({ method, path }) => {
      const id = path.split('/')[3] ?? ''
      if (method === 'DELETE') return { status: pins.delete(id) ? 202 : 404 }
      if (method === 'POST') pins.set(`r${++count}`, count < 4 ? 'failed' : 'pinned')
      if (method === 'POST') return { status: 202, json: show(`r${count}`) }
      return { json: id ? show(id) : { results: [...pins.keys()].map(show) } }
    }
    for (let turn = 0; turn < 3; turn++) await failure(provider.pin(upload, signal()))
    assert.deepEqual([...pins.keys()], ['r3'])
    assert.equal(String(await provider.pin(upload, signal())), String(upload.cid))
    assert.deepEqual([...pins.keys()], ['r4'])
  })
  test('psa: pin gone or not yet visible → requested again', async () => {
    const provider = await make(sets['psa'] as Set)
    service.script = ({ method, path }) => {
      if (method === 'POST') return { status: 202, json: { requestid: 'r', status: 'queued' } }
      return path.endsWith('/pins/r') ? { status: 404, json: { error: { reason: 'NOT_FOUND' } } } : undefined
    }
    assert.equal((await failure(provider.pin(upload, signal()))).facts['class'], 'transient')
    service.script = undefined
    assert.equal(String(await provider.pin(upload, signal())), String(upload.cid))
  })
  test('forward: CID in every spelling → accepted', async () => {
    const provider = await make(sets['forward'] as Set)
    for (const told of [String(upload.cid), `/ipfs/${upload.cid}`, `ipfs://${upload.cid}/name`, `ipfs/${upload.cid}`]) {
      service.script = () => ({ json: { cids: [told] } })
      assert.equal(String(await provider.pin(upload, signal())), String(upload.cid))
    }
  })
})
