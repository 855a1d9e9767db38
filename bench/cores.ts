// `node bench/cores.ts`: the same load on a gateway of one process and on one of several, in turns. Two numbers tell what the
// others are worth where each has a processor of its own: the work of a second of processor time, and how evenly they share the
// load. Here all have one processor, because the load needs the other one.
import { rm, writeFile } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { start } from './work/child.ts'
import type { Done, Load } from './work/client.ts'
import { type Content, made } from './work/content.ts'
import { median } from './work/measure.ts'
import { pinned, type Server, startCidgate, startOrigin, tempFolder } from './work/servers.ts'

const rounds = Number(process.env['BENCH_ROUNDS'] ?? 5)
const seconds = Number(process.env['BENCH_SECONDS'] ?? 4)
// As many that each process is past its warming, which takes some ten thousand of them.
const missesPerRound = 4000 * seconds
const firstReadsPerRound = 1000 * seconds
const mib = 2 ** 20

type Work = {
  readonly id: string
  readonly content: Content
  readonly cache: object
  /** What one round asks for, of all paths. */
  readonly load: (paths: readonly string[], round: number) => Omit<Load, 'url'>
  /** Asked for once before the rounds. */
  readonly isWarm: boolean
  readonly unit: 'requests' | 'MiB'
  readonly workers: number
  /** `worth`: as many processes as one; `share`: work per processor second as a share of that of one process. */
  readonly aim: { readonly of: 'worth' | 'share'; readonly value: number }
}

const over = (connections: number) => (paths: readonly string[]) => ({
  connections,
  seconds,
  requests: paths.map((path) => ({ path })),
})
const disk = { use: 'disk', maxBytes: '10GiB' }
const memory = { use: 'memory', maxBytes: '64MiB' }
const works: readonly Work[] = [
  {
    id: 'hot',
    content: { count: 1, bytes: 1024, seed: 1, json: true },
    cache: {},
    load: over(64),
    isWarm: true,
    unit: 'requests',
    workers: 2,
    aim: { of: 'worth', value: 1.8 },
  },
  {
    id: 'first reads',
    content: { count: firstReadsPerRound * (rounds + 1), bytes: 20 * 1024, seed: 50 },
    cache: { responses: { maxBytes: 0 }, tiers: [disk] },
    load: (paths, round) => ({
      connections: 64,
      requests: paths.slice(round * firstReadsPerRound, (round + 1) * firstReadsPerRound).map((path) => ({ path })),
    }),
    isWarm: true,
    unit: 'requests',
    workers: 4,
    aim: { of: 'share', value: 0.75 },
  },
  {
    id: 'miss',
    content: { count: missesPerRound * (rounds + 1), bytes: 4096, seed: 1000 },
    cache: { responses: { maxBytes: 0 }, tiers: [memory] },
    load: (paths, round) => ({
      connections: 64,
      requests: paths.slice(round * missesPerRound, (round + 1) * missesPerRound).map((path) => ({ path })),
    }),
    isWarm: false,
    unit: 'requests',
    workers: 2,
    aim: { of: 'worth', value: 1.8 },
  },
  {
    id: 'big',
    content: { count: 1, bytes: 64 * mib, seed: 3 },
    cache: { responses: { maxBytes: 0 }, tiers: [disk] },
    load: over(16),
    isWarm: true,
    unit: 'MiB',
    workers: 2,
    aim: { of: 'worth', value: 1.8 },
  },
]

type Round = { readonly perCpuSecond: number; readonly perSecond: number; readonly busiest: number }

const client = fileURLToPath(new URL('work/client.ts', import.meta.url))

async function once(server: Server, load: Omit<Load, 'url'>, unit: Work['unit'], folder: string): Promise<Round> {
  const file = join(folder, 'load.json')
  await writeFile(file, JSON.stringify({ url: server.url, ...load }))
  const before = server.cpuOfEach()
  const done = JSON.parse(await start(...pinned(1, process.execPath, [client, file])).line) as Done
  if (done.broken > 0 || Object.keys(done.statuses).some((status) => status !== '200'))
    throw new Error(`${JSON.stringify(done.statuses)}, ${done.broken} connections broke`)
  const used = [...server.cpuOfEach()].map(([pid, cpu]) => cpu - (before.get(pid) ?? 0))
  const all = used.reduce((sum, one) => sum + one, 0)
  const units = unit === 'MiB' ? done.bytes / mib : done.answers
  return { perCpuSecond: units / all, perSecond: units / done.seconds, busiest: Math.max(...used) / all }
}

/** Until connections come to so many processes: the ids of each begin alike. */
async function answering(url: string, processes: number): Promise<void> {
  const seen = new Set<string>()
  for (let tries = 0; seen.size < processes; tries++) {
    if (tries > 2000) throw new Error(`${seen.size} of ${processes} processes answer`)
    const answers = await Promise.all(
      Array.from({ length: 8 }, () => fetch(`${url}/ipfs/bafkqaaa?format=raw`, { headers: { Connection: 'close' } })),
    )
    for (const { headers } of answers) seen.add(headers.get('x-request-id')?.replace(/-[^-]*$/, '') ?? '')
    await sleep(20)
  }
}

async function readAll(url: string, paths: readonly string[]): Promise<void> {
  for (let at = 0; at < paths.length; at += 16)
    await Promise.all(paths.slice(at, at + 16).map(async (path) => (await fetch(url + path)).bytes()))
}

const folder = await tempFolder()
const lines = [
  `${availableParallelism()} processors, ${rounds} rounds; units per processor second of all processes together`,
  '',
  '| row | workers | one process | all | share of one | busiest has | worth | aim | MiB each |',
  '|---|---|---|---|---|---|---|---|---|',
]
for (const work of works.filter(({ id }) => !process.env['BENCH_ONLY'] || process.env['BENCH_ONLY'] === id)) {
  const files = await made(work.content)
  const origin = await startOrigin([work.content])
  const config = (workers: number) => ({
    workers,
    retrieval: { probeEvery: 0, upstreams: [{ name: 'origin', url: origin.url }] },
    cache: work.cache,
  })
  const servers = [await startCidgate(config(1)), await startCidgate(config(work.workers))]
  const paths = files.map(({ cid }) => `/ipfs/${cid}`)
  try {
    for (const [at, { url }] of servers.entries()) await answering(url, at === 0 ? 1 : work.workers)
    if (work.isWarm) for (const { url } of servers) await readAll(url, paths)
    const all: Round[][] = [[], []]
    for (let round = 0; round <= rounds; round++)
      for (const at of round % 2 === 0 ? [0, 1] : [1, 0]) {
        const told = await once(servers[at] as Server, work.load(paths, round), work.unit, folder)
        // The first one warms.
        if (round > 0) all[at]?.push(told)
      }
    const [one, two] = all.map((some) => median(some.map(({ perCpuSecond }) => perCpuSecond))) as [number, number]
    const busiest = median((all[1] ?? []).map((round) => round.busiest))
    const found = { share: two / one, worth: two / one / busiest }
    const { of, value } = work.aim
    const each = (servers[1] as Server).resident() / work.workers / mib
    lines.push(
      `| ${work.id} | ${work.workers} | ${figure(one)} | ${figure(two)} | ${found.share.toFixed(2)} | ${Math.round(busiest * 100)} % | ${found.worth.toFixed(2)} | ${of} ${value}${found[of] < value ? ', not met' : ''} | ${figure(each)} |`,
    )
  } finally {
    for (const { stop } of [...servers, origin]) await stop()
  }
}
await rm(folder, { recursive: true, force: true })
process.stdout.write(`${lines.join('\n')}\n`)

function figure(value: number): string {
  return Math.round(value).toLocaleString('en')
}
