// A large file of which several upstreams bring parts at once: quicker than from one of them, whatever one of them does in its part.
import assert from 'node:assert/strict'
import { after, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { addFile, type BlockMap, type FileFixture, noise } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { type Fault, type ProgrammableUpstream, type Seen, startUpstream } from '../support/upstream.ts'

const mib = 1024 * 1024
const largeMib = 8
const honest = undefined

type Upstreams = Record<string, ProgrammableUpstream>

const running: { close(): Promise<void> }[] = []
const keep = <T extends { close(): Promise<void> }>(one: T): T => {
  running.push(one)
  return one
}
after(async () => {
  for (const one of running.reverse()) await one.close()
})

async function world(
  faults: Record<string, ProgrammableUpstream['fault']>,
  options: Record<string, unknown> = {},
  sizeMib = largeMib,
) {
  const blocks: BlockMap = new Map()
  const file = await addFile(blocks, noise(sizeMib * mib, 1), 'v0')
  const upstreams: Upstreams = {}
  for (const [name, fault] of Object.entries(faults)) {
    const one = keep(await startUpstream({ blocks }))
    one.fault = fault
    one.bytesPerSecond = 2e6
    upstreams[name] = one
  }
  const gateway = keep(
    await startGateway({
      upstreams: Object.entries(upstreams).map(([name, { url }]) => ({ name, url, ...options })),
      config: { cache: { tiers: [{ use: 'memory', maxBytes: '64MiB' }], responses: { maxBytes: 0 } } },
    }),
  )
  return { file, upstreams, gateway }
}

async function read({ url }: TestGateway, { cid, bytes }: FileFixture): Promise<void> {
  const { status, body } = await fetchAll(`${url}/ipfs/${cid}`)
  assert.equal(status, 200)
  assert.ok(body.equals(bytes))
}

const brought = ({ sentBytes }: ProgrammableUpstream): number => sentBytes
const isPart = ({ url }: Seen) => /entity-bytes=[1-9]/.test(url)
const isBlock = ({ url }: Seen) => url.includes('format=raw')

describe(`${largeMib} MiB from upstreams of 2 MB a second`, () => {
  test('two upstreams → each brings a good part', async () => {
    const { gateway, file, upstreams } = await world({ one: honest, two: honest })
    await read(gateway, file)
    for (const one of Object.values(upstreams)) assert.ok(brought(one) > file.bytes.byteLength / 4)
  })

  const misbehaving: Record<string, (seen: Seen) => Fault | undefined> = {
    'stalls in its part': (seen) => (isPart(seen) ? { kind: 'stall', after: 100_000 } : honest),
    'is silent about its part': (seen) => (isPart(seen) ? { kind: 'silent' } : honest),
    'cuts its part': (seen) => (isPart(seen) ? { kind: 'cut', after: 700_000 } : honest),
    'sends other bytes in its part': (seen) => (isPart(seen) ? { kind: 'wrongBytes', block: 2 } : honest),
    'redirects its part elsewhere': (seen) => (isPart(seen) ? { kind: 'redirect', to: 'http://127.0.0.1:1/' } : honest),
  }
  for (const [what, fault] of Object.entries(misbehaving))
    test(`one of two ${what} → the other one brings it`, async () => {
      const { gateway, file } = await world({ one: honest, two: fault })
      await read(gateway, file)
    })

  test('one stalls once in its part → it brings another part', async () => {
    let parts = 0
    const once = (seen: Seen): Fault | undefined =>
      isPart(seen) && ++parts === 1 ? { kind: 'stall', after: 100_000 } : honest
    const { gateway, file } = await world({ one: honest, two: once }, {}, 2 * largeMib)
    await read(gateway, file)
    assert.ok(parts > 1)
  })

  test('one sends single blocks alone → it brings leaves', async () => {
    const raw = (seen: Seen): Fault | undefined => (isBlock(seen) ? honest : { kind: 'noCar', status: 406 })
    const { gateway, file, upstreams } = await world({ one: honest, raw })
    await read(gateway, file)
    assert.ok(upstreams['raw']?.asked.some(isBlock))
  })

  test('one ignores entity-bytes → its answer is given up', async () => {
    const { gateway, file } = await world({ one: honest, all: { kind: 'ignoresRanges' } })
    await read(gateway, file)
  })

  test('maxConnections: 1 → each upstream has one question at a time', async () => {
    const { gateway, file, upstreams } = await world({ one: honest, two: honest }, { maxConnections: 1 })
    await read(gateway, file)
    // The socket of an answer that was given up may be open there still.
    for (const one of Object.values(upstreams)) assert.ok(one.maxAtOnce <= 2, `${one.maxAtOnce}`)
  })

  test('slow reader → upstreams wait for it', async () => {
    const { gateway, file, upstreams } = await world({ one: honest, two: honest }, {}, 4 * largeMib)
    for (const one of Object.values(upstreams)) one.bytesPerSecond = undefined
    const response = await fetch(`${gateway.url}/ipfs/${file.cid}`)
    const reader = response.body?.getReader()
    await reader?.read()
    await sleep(1500)
    const sent = Object.values(upstreams).reduce((sum, one) => sum + brought(one), 0)
    assert.ok(sent <= file.bytes.byteLength * 0.75, `${sent} bytes`)
    await reader?.cancel()
  })
})
