// `node bench/scale.ts`: a disk tier with many blocks against one with few: startup, memory, hits,
// and eviction under load. The tier itself writes the blocks. `--blocks 10000,100000,1000000`;
// `--quick` omits the million and some rounds; `--only start,hits,eviction` selects.
import { hash as digestOf, randomInt } from 'node:crypto'
import { readdir, rm, stat } from 'node:fs/promises'
import { Agent, get, type IncomingMessage } from 'node:http'
import { cpus, loadavg } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { CID } from 'multiformats/cid'
import { disk } from '../backends/tiers/disk.ts'
import { codec, hash } from '../src/core/cid.ts'
import { systemClock } from '../src/core/clock.ts'
import { silentLog } from '../src/core/log.ts'
import { made } from './work/content.ts'
import { median } from './work/measure.ts'
import { type Server, startCidgate, startOrigin, tempFolder } from './work/servers.ts'

const { values } = parseArgs({
  options: { blocks: { type: 'string' }, quick: { type: 'boolean' }, only: { type: 'string' } },
})
const counts = (values.blocks ?? (values.quick ? '10000,100000' : '10000,100000,1000000')).split(',').map(Number)
const parts = values.only?.split(',') ?? ['start', 'hits', 'eviction']
const rounds = values.quick ? 3 : 5
const hitsPerRound = values.quick ? 4000 : 20_000
const connections = 8
const mib = 2 ** 20
const blockBytes = 208 // what a small block takes
const aims = { startMs: 1000, addedMib: 64, p50: 1.2 }

const say = (line: string): void => void process.stdout.write(`${line}\n`)
const bytesOf = (index: number): Buffer => Buffer.from(`block ${index} of the bench, ${'x'.repeat(100)}`)
const cidOf = (bytes: Uint8Array): CID =>
  CID.decode(Buffer.concat([Uint8Array.of(1, codec.raw, hash.sha256, 32), digestOf('sha256', bytes, 'buffer')]))

async function writeBlocks(folder: string, count: number): Promise<void> {
  const own = { name: 'disk', userAgent: 'cidgate/bench', data: folder, log: silentLog, clock: systemClock }
  const tier = disk.create(disk.options.parse({ path: folder, maxBytes: '40GiB' }), own)
  const batch = 64
  for (let from = 0; from < count; from += batch)
    await Promise.all(
      Array.from({ length: Math.min(batch, count - from) }, (_, index) => {
        const bytes = bytesOf(from + index)
        return tier.put(cidOf(bytes), bytes)
      }),
    )
  await tier.close()
}

type Store = { readonly count: number; readonly folder: string }

const origin = await startOrigin([])
/**
 * Without memory tier and response cache: every hit is read from the disk. In most parts the origin
 * has none of the blocks.
 */
const open = ({ folder }: Store, maxBytes: number, from: Server = origin): Promise<Server> =>
  startCidgate({
    retrieval: { probeEvery: 0, upstreams: [{ name: 'origin', url: from.url }] },
    cache: {
      responses: { maxBytes: 0 },
      tiers: [{ use: 'disk', path: folder, maxBytes: `${Math.ceil(maxBytes / 1024)}KiB` }],
    },
  })

const agent = new Agent({ keepAlive: true, maxSockets: connections })
type Answer = { readonly status: number; readonly body: Buffer }
function ask(server: Server, path: string): Promise<Answer> {
  return new Promise((resolve, reject) => {
    get(server.url + path, { agent }, (response: IncomingMessage) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('end', () => resolve({ status: response.statusCode ?? 0, body: Buffer.concat(pieces) }))
      response.on('error', reject)
    }).on('error', reject)
  })
}

const pathOf = (bytes: Uint8Array): string => `/ipfs/${cidOf(bytes)}`

/** Reads some of the blocks, evenly chosen. */
async function hits(server: Server, { count }: Store, requests: number): Promise<{ p50: number; perSecond: number }> {
  const times: number[] = []
  let remaining = requests
  const began = performance.now()
  const one = async (): Promise<void> => {
    while (remaining-- > 0) {
      const bytes = bytesOf(randomInt(count))
      const path = pathOf(bytes)
      const asked = performance.now()
      const { status, body } = await ask(server, path)
      times.push(performance.now() - asked)
      if (status !== 200 || !body.equals(bytes)) throw new Error(`${path}: ${status}, or other bytes`)
    }
  }
  await Promise.all(Array.from({ length: connections }, one))
  return { p50: median(times), perSecond: (requests / (performance.now() - began)) * 1000 }
}

/** Requests absent blocks. */
async function misses(server: Server): Promise<void> {
  let remaining = 8192
  const one = async (): Promise<void> => {
    while (remaining-- > 0) await ask(server, pathOf(Buffer.from(`nowhere ${remaining} ${Math.random()}`)))
  }
  await Promise.all(Array.from({ length: connections }, one))
}

async function start(stores: readonly Store[]): Promise<void> {
  say('\nstart: until the first hit is answered')
  const times = new Map<Store, number[]>()
  const used = new Map<Store, number[]>()
  for (let round = 0; round <= rounds; round++)
    for (const store of round % 2 === 0 ? stores : stores.toReversed()) {
      const began = performance.now()
      const server = await open(store, 10 * 1024 * mib)
      await hits(server, store, 1)
      if (round > 0) times.set(store, [...(times.get(store) ?? []), performance.now() - began])
      if (round > 0) used.set(store, [...(used.get(store) ?? []), server.cpuSeconds() * 1000])
      await server.stop()
    }
  for (const [store, all] of times) {
    const missed = median(all) > aims.startMs ? ', NOT MET' : ''
    const busy = spread(used.get(store) ?? [], 0)
    say(`  ${store.count} blocks: ${spread(all, 0)} ms (aim ${aims.startMs}${missed}); ${busy} ms of the processor`)
  }
}

async function hitsAndMemory(stores: readonly Store[]): Promise<void> {
  say(`\nhits: at random of all blocks, ${connections} at once; memory behind them and behind misses`)
  type Seen = { readonly p50s: number[]; readonly cpu: number[]; resident: number }
  const seen = new Map<Store, Seen>()
  const servers = new Map<Store, Server>()
  for (const store of stores) servers.set(store, await open(store, 10 * 1024 * mib))
  for (let round = 0; round <= rounds; round++)
    for (const store of round % 2 === 0 ? stores : stores.toReversed()) {
      const server = servers.get(store) as Server
      const one = seen.get(store) ?? { p50s: [], cpu: [], resident: 0 }
      const before = server.cpuSeconds()
      const { p50 } = await hits(server, store, hitsPerRound)
      if (round > 0) one.p50s.push(p50)
      if (round > 0) one.cpu.push(((server.cpuSeconds() - before) / hitsPerRound) * 1e6)
      if (round === 0) await misses(server)
      one.resident = server.resident()
      seen.set(store, one)
    }
  for (const server of servers.values()) await server.stop()
  const small = seen.get(stores[0] as Store) as Seen
  for (const [{ count }, { p50s, cpu, resident }] of seen) {
    const ratio = median(p50s.map((p50, index) => p50 / (small.p50s[index] ?? 1)))
    const added = (resident - small.resident) / mib
    say(
      `  ${count} blocks: p50 ${spread(p50s, 2)} ms, ${ratio.toFixed(2)} x (aim ${aims.p50}${ratio > aims.p50 ? ', NOT MET' : ''}); ${spread(cpu, 0)} us of the processor a hit; ${(resident / mib).toFixed(0)} MiB, ${added.toFixed(0)} more (aim ${aims.addedMib}${added > aims.addedMib ? ', NOT MET' : ''})`,
    )
  }
}

/**
 * A limit of three fifths of the content, while new blocks arrive: the excess is evicted while hits
 * are served.
 */
async function eviction(store: Store): Promise<void> {
  const perPass = 4000
  const fresh = { count: 2 * perPass, bytes: 1000, seed: 9_000_000 }
  const source = await startOrigin([fresh])
  const all = await made(fresh)
  for (const isEvicting of [false, true]) {
    const files = isEvicting ? all.slice(perPass) : all.slice(0, perPass)
    const room = isEvicting ? store.count * blockBytes * 0.6 : 40 * 1024 * mib
    const server = await open(store, room, source)
    const before = await bytesIn(store)
    let [answers, wrong, longest, last] = [0, 0, 0, performance.now()]
    const times: number[] = []
    const began = performance.now()
    let isOver = false
    const note = (asked: number, isRight: boolean): void => {
      const now = performance.now()
      longest = Math.max(longest, now - last)
      last = now
      answers++
      times.push(now - asked)
      if (!isRight) wrong++
    }
    const reader = async (): Promise<void> => {
      while (!isOver) {
        // The source lacks blocks that may have been evicted: a 404 is a valid response.
        const bytes = bytesOf(randomInt(store.count))
        const path = pathOf(bytes)
        const asked = performance.now()
        const { status, body } = await ask(server, path)
        note(asked, status === 200 ? body.equals(bytes) : isEvicting && status === 404)
      }
    }
    const writer = async (): Promise<void> => {
      for (const file of files) {
        const asked = performance.now()
        const { status, body } = await ask(server, `/ipfs/${file.cid}`)
        note(asked, status === 200 && body.equals(file.bytes))
      }
    }
    const readers = Array.from({ length: connections - 1 }, reader)
    await writer()
    let remaining = await bytesIn(store)
    while (isEvicting && remaining > room && performance.now() - began < 120_000) remaining = await bytesIn(store)
    isOver = true
    await Promise.all(readers)
    const evicted = (before + files.length * fresh.bytes - remaining) / mib
    times.sort((one, other) => one - other)
    say(
      `  ${store.count} blocks, ${isEvicting ? `${evicted.toFixed(0)} MiB evicted` : 'nothing evicted'}: ${answers} answers in ${((performance.now() - began) / 1000).toFixed(1)} s, ${wrong} wrong; p50 ${median(times).toFixed(1)}, p99 ${(times[Math.floor(times.length * 0.99)] ?? 0).toFixed(1)} ms; the longest time without any answer ${longest.toFixed(0)} ms`,
    )
    await server.stop()
  }
  await source.stop()
}

async function bytesIn({ folder }: Store): Promise<number> {
  const sizes = (await readdir(folder)).map((name) =>
    stat(join(folder, name))
      .then(({ size }) => size)
      .catch(() => 0),
  )
  return (await Promise.all(sizes)).reduce((sum, bytes) => sum + bytes, 0)
}

const spread = (all: readonly number[], digits: number): string =>
  `${median(all).toFixed(digits)} (${Math.min(...all).toFixed(digits)} to ${Math.max(...all).toFixed(digits)})`
const load = (): string => loadavg()[0]?.toFixed(1) ?? ''

const root = await tempFolder()
try {
  const stores: Store[] = []
  for (const count of counts) {
    const began = performance.now()
    const store = { count, folder: join(root, String(count)) }
    await writeBlocks(store.folder, count)
    stores.push(store)
    say(`${count} blocks written in ${((performance.now() - began) / 1000).toFixed(1)} s`)
  }
  say(`${cpus().length} cores, Node ${process.versions.node}, load ${load()}`)
  if (parts.includes('start')) await start(stores)
  if (parts.includes('hits')) await hitsAndMemory(stores)
  if (parts.includes('eviction')) {
    say('\neviction: hits and new blocks, while what is over the room for them goes')
    for (const store of stores) await eviction(store)
  }
  say(`\nload at the end ${load()}`)
} finally {
  agent.destroy()
  await origin.stop()
  await rm(root, { recursive: true, force: true })
}
