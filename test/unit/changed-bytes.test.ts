// Bytes that were changed on their way from an upstream or on the disk: each single change to a CAR, to a raw block and to a file of
// the disk tier goes through what reads it in the gateway, and gives the true bytes or none.
import assert from 'node:assert/strict'
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { CID } from 'multiformats/cid'
import { disk } from '../../backends/tiers/disk.ts'
import { memory } from '../../backends/tiers/memory.ts'
import { type DagWant, fromIterable, isBlock, type Upstream } from '../../backends/upstreams/contract.ts'
import { trustless } from '../../backends/upstreams/trustless.ts'
import { type Block, blockKey } from '../../src/core/cid.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { readCar } from '../../src/core/wire/car-stream.ts'
import { linksOf } from '../../src/ipld/block-links.ts'
import { carHeader, carSection } from '../../src/ipld/car.ts'
import { RequestRecord } from '../../src/observe/requests.ts'
import { Flight } from '../../src/retrieval/flight/flight.ts'
import { createNegativeCache } from '../../src/retrieval/negative-cache.ts'
import { createPool } from '../../src/retrieval/upstreams/pool.ts'
import { createComponentRegistry, type WiringContext } from '../../src/wiring/components.ts'
import { wireTiers } from '../../src/wiring/tiers.ts'
import { singleChanges } from '../support/changes.ts'
import { addFile, type BlockMap, noise } from '../support/fixtures.ts'
import { tempFolder } from '../support/gateway.ts'
import { membersOf, retrievalOver } from '../support/members.ts'
import { stackOf } from '../support/scripted-tier.ts'
import { patientClock } from '../support/shifted-clock.ts'

const leafBytes = 5
const blocks: BlockMap = new Map()
const { cid: root } = await addFile(blocks, noise(2 * leafBytes, 5), 'v1', leafBytes)
const blockOf = (cid: CID): Block => ({ cid, bytes: blocks.get(blockKey(cid)) as Uint8Array })
/** A file of two leaves, in the order of a walk. */
const file = [root, ...linksOf(blockOf(root))].map(blockOf)
const leaf = file[1] as Block
const sections = file.map((block) => Buffer.concat([...carSection(block)]))
const carOf = (all: readonly Uint8Array[]) => Buffer.concat([carHeader(root), ...all])
const car = carOf(sections)

// However busy the machine is, nothing is given up.
const clock = patientClock
const context = { name: 'one', userAgent: 'cidgate/test', log: silentLog, clock }
const want = (index: number): DagWant => ({
  ...{ cid: root, segments: [], scope: 'entity' },
  range: { from: Math.max(0, index - 1) * leafBytes },
})

const isTrue = ({ bytes }: Block, found: Uint8Array | undefined): boolean =>
  found === undefined || Buffer.compare(found, bytes) === 0

/** A reader that had to wait in vain would be one that hangs. */
function refused(error: unknown): undefined {
  assert.ok(isFailure(error) && !['internal', 'timeout'].includes(error.kind), String(error))
}

/** What a request gets of each of these blocks; undefined: it was refused. What the tier then holds has to be true as well. */
async function request(upstream: Upstream, wanted: readonly Block[]): Promise<(Uint8Array | undefined)[]> {
  const stack = stackOf([memory.create({ maxBytes: 2 ** 20 }, { ...context, data: '' })])
  const { retrieval } = retrievalOver([upstream], clock, {
    ...{ stack, timeoutMs: 0, deadlineMs: 10_000, keepLookingMs: 0, readAheadBytes: 0 },
    notFound: createNegativeCache({ initialTtlMs: 5000, maxTtlMs: 5000, clock }),
  })
  const session = retrieval.session({ signal: new AbortController().signal, requestRecord: new RequestRecord() })
  const found: (Uint8Array | undefined)[] = []
  try {
    for (const [index, { cid }] of wanted.entries()) {
      const bytes = await Promise.resolve(session.get(cid, wanted === file ? want(index) : undefined)).catch(refused)
      found.push(bytes)
      if (!bytes) break
    }
    for (const block of file) assert.ok(isTrue(block, await stack.get(block.cid)), 'a tier keeps other bytes')
    return found
  } finally {
    session.end()
    await retrieval.close()
  }
}

/** The blocks that the answer of an upstream brings to its readers, while each is true. */
async function broughtBy(sent: Uint8Array<ArrayBuffer>): Promise<number> {
  async function* chunks() {
    yield sent
  }
  const upstream: Upstream = {
    name: 'one',
    traits: { dag: true, canBlock: () => true },
    ask: fromIterable((asked) => {
      if (isBlock(asked)) throw new Failure('not-found', 'it has no single blocks', { source: 'upstream' })
      return readCar(chunks(), { ownsChunks: true })
    }),
    probe: () => assert.fail('it is not probed'),
    close: async () => {},
  }
  const pool = createPool({ members: membersOf([upstream], clock), hedge: 'auto', clock, timeoutMs: 0 })
  const kept: Block[] = []
  const keep = (cid: CID, bytes: Uint8Array): void => void kept.push({ cid, bytes })
  const flight = new Flight('dag', want(0), { pool, clock, keep })
  await new Promise<void>((end, fail) => {
    const reader = { settle: () => end(), passed: () => end(), fail }
    flight.join(CID.parse('bafkqaaa'), undefined, reader)
  }).catch(refused)
  for (const { cid, bytes } of kept) assert.ok(isTrue(blockOf(cid), bytes), `other bytes for ${cid}`)
  return kept.length
}

describe('every single-byte change', () => {
  let server: Server
  let upstream: Upstream
  /** What it answers next. Without a length the answer ends as if it were whole. */
  let sent: { readonly car?: Uint8Array; readonly raw?: Uint8Array; readonly saysLength: boolean } = {
    saysLength: true,
  }
  before(async () => {
    server = createServer(({ url = '' }, response) => {
      const isCar = url.includes('format=car')
      const bytes = isCar ? sent.car : sent.raw
      if (!bytes) return void response.writeHead(404).end()
      const headers = { 'content-type': isCar ? 'application/vnd.ipld.car' : 'application/vnd.ipld.raw' }
      response.writeHead(200, { ...headers, ...(sent.saysLength && { 'content-length': bytes.byteLength }) }).end(bytes)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    upstream = trustless.create(trustless.options.parse({ url: `http://127.0.0.1:${port}` }), context)
  })
  after(async () => {
    await upstream.close()
    server.close()
  })

  /** Each on its own; resolves with how many of them gave less than the whole. */
  async function tryEach(wanted: readonly Block[], what: 'car' | 'raw', all: Iterable<Uint8Array>): Promise<number> {
    let less = 0
    let saysLength = false
    for (const bytes of all) {
      saysLength = !saysLength
      sent = { [what]: bytes, saysLength }
      const found = await request(upstream, wanted)
      for (const [index, block] of wanted.entries())
        assert.ok(isTrue(block, found[index]), `other bytes for ${block.cid}: ${Buffer.from(bytes).toString('hex')}`)
      less += Number(found.includes(undefined))
    }
    return less
  }

  test('CAR from an upstream → true blocks or a failure', async () => {
    assert.equal(await broughtBy(Buffer.from(car)), file.length)
    let less = 0
    for (const bytes of singleChanges(car)) less += Number((await broughtBy(bytes)) < file.length)
    assert.ok(less > 8 * Buffer.concat(sections).byteLength, `${less} were seen`)
  })

  test('CAR, and section order → true blocks or a failure', async () => {
    assert.equal(await tryEach(file, 'car', [car, car]), 0)
    // Each kind of change, at some of the bytes.
    const some = [...singleChanges(car)].filter((_bytes, index) => index % 61 === 0)
    const less = await tryEach(file, 'car', some)
    assert.ok(less > some.length / 2, `${less} of ${some.length} were seen`)
    const orders = sections.flatMap((one, at) =>
      sections.flatMap((other, to) => [sections.with(at, other), sections.with(at, other).with(to, one)]),
    )
    await tryEach(file, 'car', orders.map(carOf))
  })

  test('raw block from an upstream → failure', async () => {
    assert.equal(await tryEach([leaf], 'raw', [leaf.bytes, leaf.bytes]), 0)
    const all = [...singleChanges(leaf.bytes)]
    assert.equal(await tryEach([leaf], 'raw', all), all.length)
  })

  test('disk tier file → true bytes or none, counted and deleted', async () => {
    const path = await tempFolder()
    const lease = createComponentRegistry().lease()
    const open = () => disk.create(disk.options.parse({ path }), { ...context, data: path })
    const first = open()
    await first.put(leaf.cid, leaf.bytes)
    await first.close()
    const files = readdirSync(path).map((name) => ({ name: join(path, name), bytes: readFileSync(join(path, name)) }))
    const whole = {
      clock,
      log: silentLog,
      lease,
      config: { cache: { writeQueueBytes: 0 } },
    } as unknown as WiringContext
    const nothing = { blocks: { get: async () => undefined, has: async () => false } } as never
    const count = { corrupt: 0, missed: 0 }
    try {
      for (const { name, bytes } of files)
        for (const changed of singleChanges(bytes)) {
          for (const file of files) writeFileSync(file.name, file.bytes)
          writeFileSync(name, changed)
          const bare = open()
          const { stack } = wireTiers(whole, [bare], [], nothing)
          const read = (await stack.find(leaf.cid))?.bytes
          assert.ok(isTrue(leaf, read), 'other bytes')
          const held = stack.peek(leaf.cid, { part: { from: 1, to: 5 } })
          assert.ok(!held || Buffer.compare(held.bytes, leaf.bytes.subarray(1, 5)) === 0, 'other bytes of a part')
          for (const { corrupt } of stack.stats()) count.corrupt += corrupt
          if (read === undefined) {
            count.missed++
            assert.equal(await bare.has(leaf.cid), false)
            await bare.put(leaf.cid, leaf.bytes)
            assert.ok(isTrue(leaf, await bare.get(leaf.cid)))
          }
          await bare.close()
          for (const one of readdirSync(path))
            if (!files.some((file) => file.name === join(path, one))) rmSync(join(path, one))
        }
      // Each bit of the block itself.
      assert.ok(count.corrupt >= leaf.bytes.byteLength * 8, `${count.corrupt} of ${count.missed}`)
    } finally {
      await lease.end()
      rmSync(path, { recursive: true, force: true })
    }
  })
})
