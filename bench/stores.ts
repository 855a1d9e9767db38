// `node bench/stores.ts`: what a slow and a hung S3 cost, against the same gateway without one, in turns, in one run. Each
// trial is a new gateway in a process of its own over an empty folder, asked by HTTP.
import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Command } from './store-servers.ts'

type Servers = {
  readonly upstream: string
  readonly s3: Record<string, unknown>
  readonly large: string
  readonly largeBlocks: number
  readonly small: readonly string[]
}
type Running = { readonly url: string; stop(): Promise<void> }

const rounds = Number(process.env['BENCH_ROUNDS'] ?? 5)
const largeBytes = 20 * 1024 * 1024
const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const median = (values: readonly number[]): number => [...values].sort((a, b) => a - b)[values.length >> 1] ?? 0

const child = fork(file('store-servers.ts'))
const [servers] = (await once(child, 'message')) as [Servers]
async function tell(command: Command): Promise<number> {
  child.send(command)
  const [count] = (await once(child, 'message')) as [number]
  return count
}

async function start(hasS3: boolean): Promise<Running> {
  const data = await mkdtemp(join(tmpdir(), 'cidgate-bench-'))
  const config = join(data, 'config.json')
  const tiers = [
    { use: 'memory', maxBytes: '64MiB' },
    { use: 'disk', maxBytes: '1GiB' },
    ...(hasS3 ? [servers.s3] : []),
  ]
  const text = JSON.stringify({
    listen: '127.0.0.1:0',
    admin: false,
    data: join(data, 'data'),
    log: { level: 'error' },
    retrieval: { probeEvery: 0, upstreams: [{ name: 'near', url: servers.upstream }] },
    cache: { hot: { maxBytes: 0 }, tiers },
  })
  await writeFile(config, text)
  const gateway: ChildProcess = spawn(process.execPath, [file('../src/main.ts'), 'serve', '--config', config], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  if (!gateway.stdout) throw new Error('no output')
  const [line] = (await once(createInterface({ input: gateway.stdout }), 'line')) as [string]
  return {
    url: /http:\/\/[^\s/]+/.exec(line)?.[0] ?? '',
    async stop() {
      const ended = once(gateway, 'exit')
      gateway.kill('SIGKILL')
      await ended
      await rm(data, { recursive: true, force: true })
    },
  }
}

/** Milliseconds until it was there, whole. */
async function get({ url }: Running, cid: string, bytes?: number): Promise<number> {
  const began = performance.now()
  const answer = await fetch(`${url}/ipfs/${cid}`)
  const body = await answer.arrayBuffer()
  const ms = performance.now() - began
  if (answer.status !== 200) throw new Error(`${answer.status} after ${ms.toFixed(0)} ms`)
  if (bytes !== undefined && body.byteLength !== bytes) throw new Error(`${body.byteLength} bytes`)
  return ms
}

async function add({ url }: Running, content: string): Promise<number> {
  const form = new FormData()
  form.set('data', content)
  const began = performance.now()
  const answer = await fetch(`${url}/add`, { method: 'POST', body: form })
  await answer.arrayBuffer()
  if (answer.status !== 200) throw new Error(`${answer.status}`)
  return performance.now() - began
}

const warm = (at: Running): Promise<unknown> => Promise.all(servers.small.slice(-4).map((cid) => get(at, cid)))

async function cold(slowMs: number | undefined): Promise<number> {
  await tell({ do: 'clear' })
  await tell({ do: 's3', slowMs: slowMs ?? 0 })
  const at = await start(slowMs !== undefined)
  try {
    await warm(at)
    return await get(at, servers.large, largeBytes)
  } finally {
    await at.stop()
  }
}

/** From S3 alone, once it is there. */
async function hit(slowMs: number): Promise<number> {
  await tell({ do: 's3', slowMs: 0 })
  const first = await start(true)
  await get(first, servers.large, largeBytes)
  await warm(first)
  while ((await tell({ do: 'count' })) < servers.largeBlocks + 4) await sleep(20)
  await first.stop()
  await tell({ do: 's3', slowMs })
  await tell({ do: 'upstream', isThere: false })
  const second = await start(true)
  try {
    await warm(second)
    return await get(second, servers.large, largeBytes)
  } finally {
    await second.stop()
    await tell({ do: 'upstream', isThere: true })
  }
}

/** One file after another, and then one upload after another, beside an S3 that hangs from the start, or later. */
async function hung(
  when: 'never' | 'from the start' | 'later',
): Promise<{ reads: number[]; adds: number[]; large: number }> {
  await tell({ do: 'clear' })
  await tell({ do: 's3', slowMs: 10 })
  if (when === 'from the start') await tell({ do: 'silence' })
  const at = await start(when !== 'never')
  try {
    if (when !== 'from the start') {
      await warm(at)
      for (let turn = 0; turn < 4; turn++) await add(at, `before ${turn}`)
    }
    if (when === 'later') await tell({ do: 'silence' })
    const adds: number[] = []
    for (let turn = 0; turn < 8; turn++) adds.push(await add(at, `upload ${turn} ${performance.now()}`))
    const reads: number[] = []
    for (const cid of servers.small.slice(0, 12)) reads.push(await get(at, cid))
    return { reads, adds, large: await get(at, servers.large, largeBytes) }
  } finally {
    await at.stop()
    await tell({ do: 'heal' })
  }
}

const ms = (value: number): string => `${value.toFixed(0)} ms`.padStart(8)
const list = (values: readonly number[]): string => values.map((one) => one.toFixed(0)).join(' ')
const say = (line: string): boolean => process.stdout.write(`${line}\n`)
let isGood = true
function row(what: string, value: number, wanted: string, isMet: boolean): void {
  isGood &&= isMet
  say(`  ${what.padEnd(52)} ${value.toFixed(2).padStart(7)}  wanted ${wanted}${isMet ? '' : '  NOT MET'}`)
}

try {
  const figures: Record<'none' | 's30' | 's100' | 'hit30' | 'hit100', number[]> = {
    none: [],
    s30: [],
    s100: [],
    hit30: [],
    hit100: [],
  }
  for (let round = 0; round < rounds; round++) {
    figures.none.push(await cold(undefined))
    figures.s30.push(await cold(30))
    figures.s100.push(await cold(100))
    figures.hit30.push(await hit(30))
    figures.hit100.push(await hit(100))
  }
  say(`20 MiB in blocks of 256 KiB, an upstream of 10 ms, ${rounds} rounds in turns (median; all)`)
  for (const [what, of] of Object.entries(figures)) say(`  ${what.padEnd(8)} ${ms(median(of))}   ${list(of)}`)
  const none = median(figures.none)
  const perSecond = (of: readonly number[]): number => largeBytes / 1e6 / (median(of) / 1000)
  row(
    'cold with an S3 of 30 ms, against none',
    median(figures.s30) / none,
    '<= 1.30',
    median(figures.s30) <= 1.3 * none,
  )
  row(
    'cold with an S3 of 100 ms, against none',
    median(figures.s100) / none,
    '<= 1.30',
    median(figures.s100) <= 1.3 * none,
  )
  row('hit from an S3 of 30 ms, MB/s', perSecond(figures.hit30), '>= 50', perSecond(figures.hit30) >= 50)
  row('hit from an S3 of 100 ms, MB/s', perSecond(figures.hit100), '>= 50', perSecond(figures.hit100) >= 50)
  const alone = await hung('never')
  say(
    `small files and uploads, one after another\n  none            reads ${list(alone.reads)}   uploads ${list(alone.adds)}`,
  )
  for (const when of ['from the start', 'later'] as const) {
    const { reads, adds, large } = await hung(when)
    say(`  hung ${when}: reads ${list(reads)}   uploads ${list(adds)}`)
    const third = Math.max(...reads.slice(2)) / Math.max(...alone.reads.slice(2))
    row(`hung ${when}: slowest read from the third on, against none`, third, '<= 1.50', third <= 1.5)
    const more = Math.max(...adds) - median(alone.adds)
    row(`hung ${when}: slowest upload, ms more than none`, more, '<= 200', more <= 200)
    row(`hung ${when}: 20 MiB, against none`, large / alone.large, '<= 1.50', large <= 1.5 * alone.large)
  }
} finally {
  child.kill()
}
if (!isGood) process.exitCode = 1
