// The life of a pin on the admin address: listed page by page, deleted, verified, brought to a provider that came later, and taken
// down.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { after, before, describe, test } from 'node:test'
import { setImmediate, setTimeout as sleep, setImmediate as turn } from 'node:timers/promises'
import express from 'express'
import { CID } from 'multiformats/cid'
import supertest from 'supertest'
import type { Provider } from '../../backends/pinning/contract.ts'
import { addTakedownRoute } from '../../src/admin/routes.ts'
import { type Clock, systemClock } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
import { cidOf } from '../../src/testing/tier.ts'
import type { Brought, Page, Pin, Removal, TakenDown, Verification } from '../../src/upload/api-types.ts'
import { type Adding, type AddingOptions, below, multipart, type Part, post, startAdding } from '../support/adding.ts'
import { fetchAll, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'
import { keptIn, nothing, rot } from '../support/kept.ts'
import { kuboApi, startStandIn, token } from '../support/providers.ts'
import { scriptedProvider } from '../support/scripted-provider.ts'

const local = { name: 'local', use: 'embedded' }

async function add(at: TestGateway, parts: readonly Part[], query = ''): Promise<string> {
  const { status, json, body } = await post(
    `${at.url}/add${query}`,
    multipart(parts.map((part) => ({ fileName: 'a', ...part }))),
  )
  assert.equal(status, 200, body)
  return String((json['cids'] as string[]).at(-1)).slice('/ipfs/'.length)
}

const outcomesOf = ({ providers }: Removal): Record<string, string> =>
  Object.fromEntries(providers.map(({ provider, outcome }) => [provider, outcome]))

async function settled(at: TestGateway): Promise<void> {
  const ask = supertest(at.gateway.admin)
  for (let tries = 0; tries < 5000; tries++) {
    if (((await ask.get('/uploads')).body as { open: number }).open === 0) return
    await sleep(5)
  }
  assert.fail('uploads are still open')
}

describe('GET /pins', () => {
  let at: TestGateway
  const cids: string[] = []
  before(async () => {
    at = await startGateway({ config: { pinning: { providers: [local] } } })
    for (let index = 0; index < 40; index++) cids.push(await add(at, [{ body: randomBytes(100 + index) }]))
    await settled(at)
  })
  after(() => at.close())
  const page = async (query: string): Promise<Page> => {
    const { status, body } = await supertest(at.gateway.admin).get(`/pins${query}`)
    assert.equal(status, 200, JSON.stringify(body))
    return body as Page
  }

  test('each pin is on exactly one page', async () => {
    const seen: string[] = []
    let pages = 0
    for (let after: string | undefined = ''; after !== undefined; pages++) {
      const { pins, next }: Page = await page(`?limit=9&after=${after}`)
      assert.ok(pins.length <= 9)
      seen.push(...pins.map(({ cid }) => cid))
      after = next
    }
    assert.deepEqual([...seen].sort(), [...cids].sort())
    assert.equal(pages, 5)
  })

  test('by size, time, provider and state', async () => {
    assert.equal((await page('?min=120&max=129')).pins.length, 10)
    assert.equal((await page('?min=1KiB')).pins.length, 0)
    assert.equal((await page('?since=2000-01-01')).pins.length, 40)
    assert.equal((await page('?until=2000-01-01')).pins.length, 0)
    assert.equal((await page('?provider=local')).pins.length, 40)
    assert.equal((await page('?state=missing')).pins.length, 0)
  })

  test('name part → pins with it, any case; new name replaces', async () => {
    const own = await startGateway({ config: { pinning: { providers: [local] } } })
    const named = async (name: string): Promise<(string | undefined)[]> => {
      const { body } = await supertest(own.gateway.admin).get(`/pins?name=${encodeURIComponent(name)}`)
      return (body as Page).pins.map((pin) => pin.name)
    }
    try {
      await add(own, [{ body: 'one' }], '?name=A%20report%20of%20100%25')
      const pictures = ['two', 'three'].map((fileName) => ({ fileName, body: fileName }))
      const cid = await add(own, pictures, '?wrap=true&name=holiday_pictures')
      await add(own, [{ body: 'four' }])
      assert.deepEqual(await named('REPORT'), ['A report of 100%'])
      assert.deepEqual(await named('0%'), ['A report of 100%'])
      assert.deepEqual(await named('y_p'), ['holiday_pictures'])
      assert.deepEqual(await named('_r'), [])
      assert.equal(await add(own, pictures, '?wrap=true'), cid)
      assert.deepEqual(await named('holiday'), ['holiday_pictures'])
      await add(own, pictures, '?wrap=true&name=winter')
      assert.deepEqual([await named('holiday'), await named('winter')], [[], ['winter']])
      assert.equal(((await supertest(own.gateway.admin).get(`/pins/${cid}`)).body as Pin).name, 'winter')
      for (const name of ['x'.repeat(256), encodeURIComponent('ü'.repeat(128)), 'a%00b', 'a%0Ab']) {
        const { status } = await post(`${own.url}/add?name=${name}`, multipart([{ body: 'x' }]))
        assert.equal(status, 400, name)
      }
    } finally {
      await own.close()
    }
  })

  test('invalid query → 400 with reason', async () => {
    for (const query of [
      'limit=0',
      'limit=1001',
      'state=lost',
      'provider=other',
      'provider=other&state=missing',
      'since=soon',
      'min=big',
      'after=x',
      'sort=size',
      'state=pinned&state=pinned',
    ]) {
      const { status, body } = await supertest(at.gateway.admin).get(`/pins?${query}`)
      assert.equal(status, 400, query)
      assert.match((body as { detail: string }).detail, /is not|twice/)
    }
  })

  test('metrics count pins', async () => {
    const ask = supertest(at.gateway.admin)
    let text = ''
    for (let tries = 0; tries < 2000 && !text.includes('\ncidgate_pins '); tries++, await sleep(5))
      text = (await ask.get('/metrics')).text
    assert.match(text, /^cidgate_pins 40$/m)
    assert.match(text, /^cidgate_pins_bytes 4780$/m)
    assert.match(text, /^cidgate_provider_pins\{provider="local"\} 40$/m)
  })

  test('single pin by CID', async () => {
    const { body } = await supertest(at.gateway.admin).get(`/pins/${cids[0]}`)
    const { cid, bytes, isOpen, providers } = body as Pin
    assert.deepEqual([cid, bytes, isOpen, providers['local']?.state], [cids[0], 100, false, 'pinned'])
    const other = 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'
    for (const [path, status] of [
      [`/pins/${other}`, 404],
      ['/pins/nonsense', 400],
    ] as const)
      assert.equal((await supertest(at.gateway.admin).get(path)).status, status)
    assert.equal((await fetch(`${at.url}/pins`)).status, 404, 'not on the public address')
  })
})

describe('DELETE /pins/<cid>', () => {
  test('pin → deleted with blocks that no other pin needs', async () => {
    const at = await startGateway({ config: { pinning: { providers: [local] } } })
    const ask = supertest(at.gateway.admin)
    try {
      // Right after its upload.
      for (let turn = 0; turn < 10; turn++) {
        const cid = await add(at, [{ body: randomBytes(500) }])
        assert.equal((await ask.delete(`/pins/${cid}`)).status, 200)
      }
      await settled(at)
      assert.deepEqual(await keptIn(at.data), nothing)
      const [shared, own] = [randomBytes(3000), randomBytes(2000)]
      const parts = [
        { fileName: 'a', body: shared },
        { fileName: 'b', body: own },
      ]
      const directory = await add(at, parts, '?wrap=true')
      const file = await add(at, [{ body: shared }])
      await settled(at)
      const removal = (await ask.delete(`/pins/${directory}`)).body as Removal
      assert.deepEqual(removal, {
        cid: directory,
        isGone: true,
        providers: [{ provider: 'local', outcome: 'removed' }],
      })
      assert.equal((await ask.delete(`/pins/${directory}`)).status, 404)
      assert.equal((await keptIn(at.data)).blocks, 1)
      const { pins } = (await ask.get('/pins')).body as Page
      assert.deepEqual(
        pins.map(({ cid }) => cid),
        [file],
      )
      const { isWell } = (await ask.post(`/pins/${file}/verify`)).body as Verification
      assert.ok(isWell)
    } finally {
      await at.close()
    }
  })

  test('pending delivery → cancelled and deleted', async () => {
    const gone = { name: 'gone', use: 'kubo', url: 'http://127.0.0.1:1', gateway: false }
    const at = await startGateway({ config: { pinning: { providers: [local, gone] } } })
    const ask = supertest(at.gateway.admin)
    try {
      const cid = await add(at, [{ body: randomBytes(2000) }])
      const { isOpen, providers } = (await ask.get(`/pins/${cid}`)).body as Pin
      assert.deepEqual([isOpen, providers['local']?.state, providers['gone']?.state], [true, 'pinned', 'pending'])
      assert.equal(((await ask.get('/pins?provider=gone&state=pending')).body as Page).pins.length, 1)
      const removal = (await ask.delete(`/pins/${cid}`)).body as Removal
      assert.equal(removal.isGone, false, 'the provider that could not be asked may have it')
      assert.deepEqual(
        removal.providers.map(({ outcome }) => outcome),
        ['removed', 'failed'],
      )
      assert.match(String(removal.providers[1]?.why), /gone/)
      assert.deepEqual((await ask.get('/uploads')).body, { open: 0, uploads: [] })
      const { waiting, blocks, strays } = await keptIn(at.data)
      assert.deepEqual({ waiting, blocks, strays }, { waiting: [], blocks: 0, strays: [] })
    } finally {
      await at.close()
    }
  })
})

describe('pin and a second provider', () => {
  let data: string
  before(async () => {
    data = await tempFolder()
  })
  after(() => rm(data, { recursive: true, force: true }))

  test('older uploads → delivered to a new provider, damage repaired', async () => {
    const first = await startGateway({ data, config: { pinning: { providers: [local] } } })
    const body = randomBytes(2_500_000)
    const cid = await add(first, [{ body }])
    await settled(first)
    await first.close()

    const path = join(data, 'second')
    const second = { name: 'second', use: 'embedded', path }
    const at = await startGateway({ data, config: { pinning: { providers: [local, second] } } })
    const ask = supertest(at.gateway.admin)
    const verified = async () => (await ask.post(`/pins/${cid}/verify`)).body as Verification
    try {
      const before = await verified()
      assert.equal(before.isWell, true, 'a provider that never had it has not lost it')
      assert.deepEqual(
        before.providers.map(({ provider, state, blocks }) => [provider, state, blocks]),
        [
          ['local', 'pinned', 4],
          ['second', 'missing', undefined],
        ],
      )
      const brought = await ask.post(`/pins/${cid}/sync`)
      assert.equal(brought.status, 202)
      assert.deepEqual(brought.body, { cid, to: ['second'] })
      await settled(at)
      assert.deepEqual((await ask.post(`/pins/${cid}/sync`)).body, { cid, to: [] })
      assert.ok((await verified()).isWell)

      assert.equal(await rot(data, CID.parse(cid)), 1)
      const rotten = await verified()
      assert.equal(rotten.isWell, false)
      const told = at.log.filter(({ event }) => event === 'pin.missing').map(({ facts }) => facts)
      assert.deepEqual(told, [{ cid, providers: { local: 'damaged', second: 'pinned' } }])
      assert.deepEqual(
        rotten.providers.map(({ state, damaged }) => [state, damaged]),
        [
          ['damaged', [cid]],
          ['pinned', undefined],
        ],
      )
      await settled(at)
      assert.ok((await verified()).isWell)
    } finally {
      await at.close()
    }
  })

  test('provider of an earlier configuration → its pins are listed', async () => {
    const at = await startGateway({ data, config: { pinning: { providers: [local] } } })
    try {
      const { body } = await supertest(at.gateway.admin).get('/pins?provider=second')
      assert.equal((body as Page).pins.length, 1, JSON.stringify(body))
    } finally {
      await at.close()
    }
  })

  test('verify finds it missing at a provider → delivered again', async () => {
    const kubo = await startStandIn(kuboApi)
    const providers = [local, { name: 'kubo', use: 'kubo', url: kubo.url, gateway: false, auth: { bearer: token } }]
    const at = await startGateway({ config: { pinning: { minConfirmations: 1, providers } } })
    try {
      const cid = await add(at, [{ body: randomBytes(2000) }])
      await settled(at)
      assert.ok(kubo.pins.delete(cid))
      const verification = (await supertest(at.gateway.admin).post(`/pins/${cid}/verify`)).body as Verification
      assert.equal(verification.isWell, false)
      await settled(at)
      assert.ok(kubo.pins.has(cid))
    } finally {
      await at.close()
      await kubo.close()
    }
  })
})

describe('POST /deny/<cid>', () => {
  test('takedown → denied, deleted, purged, even after restart', async () => {
    const data = await tempFolder()
    const cache = {
      tiers: [
        { use: 'memory', maxBytes: '64MiB' },
        { use: 'disk', maxBytes: '64MiB' },
      ],
    }
    const config = { pinning: { providers: [local] }, cache }
    let at = await startGateway({ data, config })
    const deny = (path: string) => supertest(at.gateway.admin).post(path)
    const status = async (cid: string) => (await fetch(`${at.url}/ipfs/${cid}`)).status
    try {
      const body = randomBytes(2_500_000)
      const [cid, other] = [await add(at, [{ body }]), await add(at, [{ body: randomBytes(900) }])]
      await settled(at)
      for (const one of [cid, cid, other]) assert.equal(await status(one), 200)
      for (const query of ['reason=two%20words', 'status=404', 'reason=a&reason=b'])
        assert.equal((await deny(`/deny/${cid}?${query}`)).status, 400, query)
      assert.equal((await deny('/deny/nonsense')).status, 400)
      assert.equal(await status(cid), 200)

      const answer = await deny(`/deny/${cid}?status=451&reason=court-order`)
      assert.equal(answer.status, 200, answer.text)
      const requestId = answer.get('X-Request-Id')
      assert.match(requestId ?? '', /^[\w-]{8,}$/)
      const { isGone, blocks, pins, failures } = answer.body as TakenDown
      assert.deepEqual(
        [isGone, blocks, pins?.providers, failures],
        [true, 4, [{ provider: 'local', outcome: 'removed' }], []],
      )
      assert.equal(await status(cid), 451)
      assert.equal(await status(other), 200)
      const taken = () => at.log.filter(({ event, facts }) => event === 'admin.action' && facts['status'] === 200)
      // It is written when the answer has gone.
      for (const end = Date.now() + 10_000; taken().length === 0 && Date.now() < end; ) await turn()
      assert.deepEqual(
        taken().map(({ facts: { requestId, method, path } }) => [requestId, method, path]),
        [[requestId, 'POST', `/deny/${cid}?status=451&reason=court-order`]],
      )
      for (const name of await below(join(data, 'cache')))
        assert.equal((await readFile(join(data, 'cache', name))).includes(body.subarray(0, 64)), false, name)
      assert.equal((await keptIn(data)).blocks, 1)
      assert.equal((await post(`${at.url}/add`, multipart([{ fileName: 'a', body }]))).status, 451)
      const again = await deny(`/deny/${cid}?status=451&reason=court-order`)
      assert.equal((again.body as TakenDown).pins, null)

      await at.close()
      at = await startGateway({ data, config })
      assert.equal(await status(cid), 451)
      assert.equal((await readFile(join(data, 'denylists', 'takedowns.deny'), 'utf8')).match(/ipfs/g)?.length, 1)
    } finally {
      await at.close()
      await rm(data, { recursive: true, force: true })
    }
  })

  test('takedown of a folder → paths below stay denied', async () => {
    const far = await startGateway({ config: { pinning: { providers: [local] } } })
    const near = { name: 'near', url: far.url, allowPrivate: true }
    const data = await tempFolder()
    let at = await startGateway({ data, upstreams: [near] })
    const statuses = (folder: string) =>
      Promise.all(
        ['', '/in/a.txt', '/in/', '/in/a.txt?format=raw', '?format=car'].map(
          async (path) => (await fetchAll(`${at.url}/ipfs/${folder}${path}`)).status,
        ),
      )
    try {
      const body = randomBytes(300)
      const parts = [{ fileName: 'in/a.txt', body }]
      const folder = await add(far, parts, '?wrap=true')
      const file = await add(far, [{ body }])
      assert.deepEqual(await statuses(folder), [200, 200, 200, 200, 200])
      assert.equal((await supertest(at.gateway.admin).post(`/deny/${folder}?reason=malware`)).status, 200)
      assert.deepEqual(await statuses(folder), [410, 410, 410, 410, 410])
      assert.equal((await fetch(`${at.url}/ipfs/${file}`)).status, 200, 'by its own CID')
      // As an earlier version wrote it.
      await at.close()
      await writeFile(join(data, 'denylists', 'takedowns.deny'), `/ipfs/${folder}\n`)
      at = await startGateway({ data, upstreams: [near] })
      assert.deepEqual(await statuses(folder), [410, 410, 410, 410, 410])
    } finally {
      await at.close()
      await far.close()
      await rm(data, { recursive: true, force: true })
    }
  })

  test('part of another pin → own pin deleted, remaining blocks reported', async () => {
    const at = await startGateway({ config: { pinning: { providers: [local] } } })
    const ask = supertest(at.gateway.admin)
    try {
      const body = randomBytes(300)
      const [file, folder] = [await add(at, [{ body }]), await add(at, [{ body }], '?wrap=true')]
      const first = (await ask.post(`/deny/${file}`)).body as TakenDown
      assert.deepEqual([first.isGone, first.pins?.isGone, first.blocks, first.kept], [false, true, 0, 1])
      assert.match(first.failures.join(), /a part of/)
      assert.deepEqual((await ask.post(`/deny/${folder}`)).body, {
        ...{ cid: folder, isGone: true, blocks: 2, kept: 0, failures: [] },
        pins: { cid: folder, isGone: true, providers: [{ provider: 'local', outcome: 'removed' }] },
      })
      assert.equal(((await ask.post(`/deny/${file}`)).body as TakenDown).isGone, true)
    } finally {
      await at.close()
    }
  })

  test("denied by another list → takedown persists after that list's change", async () => {
    const data = await tempFolder()
    const list = join(data, 'bad.deny')
    const body = randomBytes(300)
    const cid = cidOf(body).toString()
    await writeFile(list, `/ipfs/${cid}\n`)
    const config = { pinning: { providers: [local] } }
    let at = await startGateway({ data, config: { ...config, denylists: [list] } })
    try {
      assert.equal((await supertest(at.gateway.admin).post(`/deny/${cid}?status=451`)).status, 200)
      await at.close()
      at = await startGateway({ data, config })
      assert.equal((await post(`${at.url}/add`, multipart([{ fileName: 'a', body }]))).status, 451)
      assert.equal((await supertest(at.gateway.admin).post(`/deny/${cid}`)).status, 200)
      assert.equal((await fetch(`${at.url}/ipfs/${cid}`)).status, 410, 'the last takedown says why')
    } finally {
      await at.close()
      await rm(data, { recursive: true, force: true })
    }
  })
})

describe('concurrent operations on a pin', () => {
  /** Its records are on the disk, which may be busy. */
  async function over({ uploads, close }: Adding): Promise<void> {
    const until = Date.now() + 20_000
    const isOver = async () => (await uploads.pins.waiting()).uploads === 0
    while (!(await isOver()) && Date.now() < until) await sleep(2)
    if (await isOver()) return
    await close()
    assert.fail('uploads are still open')
  }
  async function stage(own: AddingOptions = {}) {
    const far = scriptedProvider('far')
    const adding = await startAdding({ others: [far], confirm: 'all', ...own })
    const { uploads } = adding
    const cid = CID.parse((await uploads.add(Readable.from([randomBytes(300)]))).cid.toString())
    await over(adding)
    return { adding, uploads, far, cid }
  }
  const signal = new AbortController().signal

  test('deleted during verify → stays deleted', async () => {
    const { adding, uploads, far, cid } = await stage()
    try {
      const answer = Promise.withResolvers<'missing'>()
      const { status } = far
      let asked = 0
      Object.assign(far, { status: (one: CID) => (asked++ === 0 ? answer.promise : status(one, signal)) })
      const verifying = uploads.pins.verify(cid, signal)
      for (let tries = 0; tries < 5000 && asked === 0; tries++) await sleep(2)
      assert.equal(((await uploads.pins.remove(cid)) as Removal).isGone, true)
      answer.resolve('missing')
      await verifying
      assert.equal(await uploads.pins.find(cid), undefined)
    } finally {
      await adding.close()
    }
  })

  test('denied → not delivered to providers, even when resumed', async () => {
    const data = await tempFolder()
    let isDenied = false
    const admit = () => {
      if (isDenied) throw new Failure('denied', 'a list denies it', { source: 'ours', facts: { legal: false } })
    }
    const open = async (far: Provider, clock: Clock = systemClock) => startAdding({ data, others: [far], admit, clock })
    let adding = await open(scriptedProvider('far', 'dead'))
    try {
      const cid = CID.parse((await adding.uploads.add(Readable.from([randomBytes(300)]))).cid.toString())
      await adding.close()
      isDenied = true
      const far = scriptedProvider('far')
      // Its next try is due by now.
      adding = await open(far, { ...systemClock, now: () => Date.now() + 60_000 })
      const why = async () => (await adding.uploads.pins.find(cid))?.providers['far']?.why ?? ''
      for (let tries = 0; tries < 5000 && !/denies/.test(await why()); tries++) await sleep(2)
      assert.match(await why(), /denies/)
      assert.equal(far.pins, 0)
      await assert.rejects(adding.uploads.pins.bring(cid), /denies/)
      const removal = (await adding.uploads.pins.remove(cid)) as Removal
      assert.deepEqual(outcomesOf(removal), { local: 'removed', far: 'not-known' }, 'it may have got all of it')
      assert.equal(removal.isGone, false)
      assert.equal(await adding.uploads.pins.find(cid), undefined)
    } finally {
      await adding.close()
      await rm(data, { recursive: true, force: true })
    }
  })

  test('deleted while queued for delivery → stays deleted', async () => {
    const data = await tempFolder()
    let adding = await startAdding({ data })
    try {
      const cid = CID.parse((await adding.uploads.add(Readable.from([randomBytes(300)]))).cid.toString())
      await over(adding)
      await adding.close()
      const far = scriptedProvider('far')
      adding = await startAdding({ data, others: [far] })
      const { uploads, store } = adding
      const looked = Promise.withResolvers<void>()
      let looks = 0
      const { find } = store.ledger
      Object.assign(store.ledger, {
        async find(one: CID) {
          if (looks++ === 0) await looked.promise
          return find(one)
        },
      })
      const bringing = uploads.pins.bring(cid)
      for (let tries = 0; tries < 5000 && looks === 0; tries++) await sleep(2)
      const removing = uploads.pins.remove(cid)
      // Time enough for a deletion that does not wait.
      await Promise.race([removing, sleep(100)])
      looked.resolve()
      assert.deepEqual((await bringing) as Brought, { cid: cid.toString(), to: ['far'] })
      assert.equal(outcomesOf((await removing) as Removal)['local'], 'removed')
      for (let tries = 0; tries < 200; tries++) await setImmediate()
      assert.equal(await uploads.pins.find(cid), undefined)
      assert.equal(far.held.size, 0)
    } finally {
      await adding.close()
      await rm(data, { recursive: true, force: true })
    }
  })

  test('re-upload and delete → either order is consistent', async () => {
    const here = scriptedProvider('here', 'holds', { local: true })
    const { pin, unpin } = here
    const far = scriptedProvider('far', 'dead')
    const adding = await startAdding({ withoutEmbedded: true, others: [here, far], queue: true })
    const { pins } = adding.uploads
    const body = randomBytes(100)
    const add = () => adding.uploads.add(Readable.from([body]))
    try {
      const { cid } = await add()
      const [asked, goesOn] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      here.pin = async (upload, signal) => {
        asked.resolve()
        await goesOn.promise
        return pin(upload, signal)
      }
      const again = add()
      await asked.promise
      assert.equal(await pins.remove(cid), 'busy')
      goesOn.resolve()
      await again
      assert.ok(here.held.has(cid.toString()))
      assert.ok(await pins.find(cid))

      here.pin = pin
      const removing = Promise.withResolvers<void>()
      const mayRemove = Promise.withResolvers<void>()
      here.unpin = async (...args) => {
        removing.resolve()
        await mayRemove.promise
        return unpin(...args)
      }
      const removal = pins.remove(cid)
      await removing.promise
      const anew = add()
      mayRemove.resolve()
      assert.notEqual(await removal, 'busy')
      await anew
      assert.ok(here.held.has(cid.toString()))
      assert.ok(await pins.find(cid))

      here.unpin = unpin
      assert.equal(typeof (await pins.remove(cid)), 'object')
      assert.equal(here.held.has(cid.toString()), false)
      assert.equal((await pins.waiting()).uploads, 0)
    } finally {
      await adding.close()
      await rm(adding.data, { recursive: true, force: true })
    }
  })

  test('delivery by a pre-reload gateway → deleted by the newest', async () => {
    const data = await tempFolder()
    const far = scriptedProvider('far', 'dead')
    const older = await startAdding({ data, others: [far] })
    const middle = await startAdding({ data, others: [far] })
    const newest = await startAdding({ data, others: [far] })
    const upload = async () => CID.parse((await older.uploads.add(Readable.from([randomBytes(300)]))).cid.toString())
    const { pins } = newest.uploads
    const removed = async (cid: CID) => {
      assert.equal((await pins.find(cid))?.providers['far']?.state, 'pending')
      assert.deepEqual(outcomesOf((await pins.remove(cid)) as Removal), { local: 'removed', far: 'not-known' })
      assert.equal(await pins.find(cid), undefined)
    }
    try {
      const [running, left] = [await upload(), await upload()]
      await removed(running)
      assert.equal((await pins.waiting()).uploads, 1)
      await older.close()
      await removed(left)
      await middle.close()
      assert.deepEqual(await keptIn(data), nothing)
    } finally {
      for (const one of [older, middle, newest]) await one.close().catch(() => {})
      await rm(data, { recursive: true, force: true })
    }
  })

  test('unwritable takedown → applies in memory, deletes, reports it', async () => {
    const data = await tempFolder()
    const file = join(data, 'denylists', 'takedowns.deny')
    const at = await startGateway({ data, config: { pinning: { providers: [local] } } })
    const ask = supertest(at.gateway.admin)
    try {
      const cid = await add(at, [{ body: randomBytes(300) }])
      await mkdir(file, { recursive: true })
      const { status, body } = await ask.post(`/deny/${cid}?status=451`)
      assert.equal(status, 500)
      assert.match(body.detail, /EISDIR.*denied, but in memory only.*check that disk, then repeat it/)
      assert.deepEqual(body.pins.providers, [{ provider: 'local', outcome: 'removed' }])
      assert.equal((await fetch(`${at.url}/ipfs/${cid}`)).status, 451)
      await rm(file, { recursive: true })
      assert.equal((await ask.post(`/deny/${cid}?status=451`)).status, 200)
      assert.match(await readFile(file, 'utf8'), new RegExp(`\n/ipfs/${cid}/\\* status=451\n$`))
    } finally {
      await at.close()
      await rm(data, { recursive: true, force: true })
    }
  })

  test('takedown during upload, full disk → reports that nothing was deleted', async () => {
    const forgotten = new Failure('disk-full', 'disk full', { source: 'ours' })
    const app = express()
    addTakedownRoute(app, async () => ({ done: 'busy', forgotten }))
    const { status, body } = await supertest(app).post(`/deny/${cidOf(randomBytes(10))}`)
    assert.equal(status, 507)
    assert.match(body.detail, /^disk full; nothing was deleted yet, because it was being uploaded$/)
  })
})
