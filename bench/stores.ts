// `npm run bench`: what a slow and a hung S3 cost, against the same gateway without one, in turns, in one run. Each
// trial is a new gateway in a process of its own over an empty folder, asked by HTTP.
import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { readSlices } from '../test/support/read-slices.ts'
import type { Command } from './store-servers.ts'

type Servers = {
  readonly upstream: string
  readonly s3: Record<string, unknown>
  readonly large: readonly { readonly cid: string; readonly keys: readonly string[] }[]
  readonly small: readonly string[]
}
type Running = { readonly url: string; stop(): Promise<void> }

const rounds = Number(process.env['BENCH_ROUNDS'] ?? 5)
const largeBytes = 20 * 1024 * 1024
const restMs = 500
const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const median = (values: readonly number[]): number => [...values].sort((a, b) => a - b)[values.length >> 1] ?? 0

const child = fork(file('store-servers.ts'))
const [servers] = (await once(child, 'message')) as [Servers]
const [first, later] = servers.large.map(({ cid }) => cid) as [string, string]
const largeBlocks = servers.large.flatMap(({ keys }) => keys).length
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
    cache: { responses: { maxBytes: 0 }, tiers },
  })
  await writeFile(config, text)
  const gateway: ChildProcess = spawn(process.execPath, [file('../src/cli/main.ts'), 'serve', '--config', config], {
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
  const { status, bytes: came, ms } = await readSlices(`${url}/ipfs/${cid}`)
  if (status !== 200) throw new Error(`${status} after ${ms.toFixed(0)} ms`)
  if (bytes !== undefined && came !== bytes) throw new Error(`${came} bytes`)
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
    return await get(at, first, largeBytes)
  } finally {
    await at.stop()
  }
}

/** From S3 alone, once it is there: the first file of a new process, and a later one. */
async function hit(slowMs: number): Promise<{ first: number; later: number }> {
  await tell({ do: 's3', slowMs: 0 })
  const before = await start(true)
  for (const cid of [first, later]) await get(before, cid, largeBytes)
  await warm(before)
  while ((await tell({ do: 'count' })) < largeBlocks + 4) await sleep(20)
  await before.stop()
  await tell({ do: 's3', slowMs })
  await tell({ do: 'upstream', isThere: false })
  const after = await start(true)
  try {
    await warm(after)
    const ms = await get(after, first, largeBytes)
    await sleep(restMs) // what it brought is being written to the disk
    return { first: ms, later: await get(after, later, largeBytes) }
  } finally {
    await after.stop()
    await tell({ do: 'upstream', isThere: true })
  }
}

/** The same blocks from the S3 store by itself, in MB/s. */
async function storeAlone(): Promise<readonly number[]> {
  const alone = fork(file('store-alone.ts'))
  alone.send({ s3: servers.s3, files: servers.large.map(({ keys }) => keys) })
  const [rates] = (await once(alone, 'message')) as [number[]]
  return rates
}

/** One upload after another, and then one file after another, beside an S3 that hangs from the start or later, or without one. */
async function hung(
  when: 'from the start' | 'later',
  hasS3: boolean,
): Promise<{ reads: number[]; adds: number[]; large: number }> {
  await tell({ do: 'clear' })
  await tell({ do: 's3', slowMs: 10 })
  if (when === 'from the start') await tell({ do: 'silence' })
  const at = await start(hasS3)
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
    return { reads, adds, large: await get(at, first, largeBytes) }
  } finally {
    await at.stop()
    await tell({ do: 'heal' })
  }
}

const rateOf = (ms: number): number => largeBytes / 1000 / ms
const loadNow = (): string => loadavg()[0]?.toFixed(1) ?? ''
const list = (values: readonly number[]): string => values.map((one) => one.toFixed(0)).join(' ')
const say = (line: string): boolean => process.stdout.write(`${line}\n`)
let isGood = true
function row(what: string, value: number, wanted: string, isMet: boolean): void {
  isGood &&= isMet
  say(`  ${what.padEnd(52)} ${value.toFixed(2).padStart(7)}  wanted ${wanted}${isMet ? '' : '  NOT MET'}`)
}

try {
  const cold30: number[] = []
  const cold100: number[] = []
  const coldNone: number[] = []
  const hits: Record<'30' | '100', { first: number[]; later: number[]; aloneFirst: number[]; aloneLater: number[] }> = {
    '30': { first: [], later: [], aloneFirst: [], aloneLater: [] },
    '100': { first: [], later: [], aloneFirst: [], aloneLater: [] },
  }
  for (let round = 0; round < rounds; round++) {
    coldNone.push(await cold(undefined))
    cold30.push(await cold(30))
    cold100.push(await cold(100))
    for (const [slow, of] of Object.entries(hits)) {
      const ms = await hit(Number(slow))
      const [aloneFirst = 0, aloneLater = 0] = await storeAlone()
      of.first.push(rateOf(ms.first))
      of.later.push(rateOf(ms.later))
      of.aloneFirst.push(aloneFirst)
      of.aloneLater.push(aloneLater)
    }
  }
  say(`20 MiB in blocks of 256 KiB, an upstream of 10 ms, ${rounds} rounds in turns; load ${loadNow()}`)
  say(`  cold, ms: without S3 ${list(coldNone)}; S3 of 30 ms ${list(cold30)}; of 100 ms ${list(cold100)}`)
  for (const [slow, of] of [
    ['30', cold30],
    ['100', cold100],
  ] as const) {
    const times = median(of) / median(coldNone)
    row(`cold with an S3 of ${slow} ms, against none`, times, '<= 1.30', times <= 1.3)
  }
  for (const [slow, { first, later, aloneFirst, aloneLater }] of Object.entries(hits)) {
    say(`  hit from an S3 of ${slow} ms, MB/s: first file ${list(first)}; a later one ${list(later)}`)
    row(`hit, S3 of ${slow} ms, first file after a start, MB/s`, median(first), '>= 50', median(first) >= 50)
    say(`${' '.repeat(16)}the store alone, in a process as new: ${median(aloneFirst).toFixed(2)}`)
    row(`hit, S3 of ${slow} ms, a later file, MB/s`, median(later), '>= 50', median(later) >= 50)
    say(`${' '.repeat(16)}the store alone, a later file: ${median(aloneLater).toFixed(2)}`)
  }
  say('small files and uploads, one after another')
  for (const when of ['from the start', 'later'] as const) {
    const alone = await hung(when, false)
    const { reads, adds, large } = await hung(when, true)
    say(`  without S3:    reads ${list(alone.reads)}   uploads ${list(alone.adds)}`)
    say(`  hung ${when}: reads ${list(reads)}   uploads ${list(adds)}`)
    const third = Math.max(...reads.slice(2)) / Math.max(...alone.reads.slice(2))
    row(`hung ${when}: slowest read from the third on, against none`, third, '<= 1.50', third <= 1.5)
    // Turn by turn: the first one of a process is slower without S3, too.
    const more = Math.max(...adds.map((ms, turn) => ms - (alone.adds[turn] ?? 0)))
    row(`hung ${when}: most that an upload took longer than without, ms`, more, '<= 200', more <= 200)
    row(`hung ${when}: 20 MiB, against none`, large / alone.large, '<= 1.50', large <= 1.5 * alone.large)
  }
} finally {
  child.kill()
}
if (!isGood) process.exitCode = 1
