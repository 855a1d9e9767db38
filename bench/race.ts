// `npm run bench`: what an upstream that stalls, drips or knows single blocks only costs a reader, through HTTP, with the
// upstreams in a process of their own. The peer is the same gateway with the honest upstream alone, in the same run.
import { type ChildProcess, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { startGateway, type TestGateway } from '../test/support/gateway.ts'
import { readSlices } from '../test/support/read-slices.ts'
import type { Fault } from '../test/support/upstream.ts'
import type { Command } from './upstream-process.ts'

const mib = 1024 * 1024
const files = Number(process.env['BENCH_FILES'] ?? 100)
const largeMib = 64
const tripMs = 60

type Upstreams = {
  readonly urls: readonly string[]
  readonly files: readonly { readonly cid: string; readonly bytes: number }[]
  /** Sets one of them, and answers how often all of them were asked so far. */
  set(command: Command): Promise<number>
  readonly child: ChildProcess
}

async function start(count: number, sizes: readonly number[]): Promise<Upstreams> {
  const script = fileURLToPath(new URL('upstream-process.ts', import.meta.url))
  const child = spawn(process.execPath, [script, String(count), ...sizes.map(String)], {
    stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
  })
  if (!child.stdout) throw new Error('no output')
  const lines = createInterface({ input: child.stdout })
  const { value: line = '' } = await lines[Symbol.asyncIterator]().next()
  return {
    child,
    ...(JSON.parse(line) as Pick<Upstreams, 'urls' | 'files'>),
    set: (command) =>
      new Promise((resolve) => {
        child.once('message', (answer) => resolve((answer as { asked: number }).asked))
        child.send(command)
      }),
  }
}

const gatewayOver = (urls: readonly string[], hedge: string): Promise<TestGateway> =>
  startGateway({
    upstreams: urls.map((url, index) => ({ name: `u${index}`, url })),
    config: {
      retrieval: { hedgeDelay: hedge },
      cache: { tiers: [{ use: 'memory', maxBytes: '128MiB' }], responses: { maxBytes: 0 } },
    },
  })

const p99 = (values: readonly number[]): number =>
  [...values].sort((one, other) => one - other)[Math.ceil(values.length * 0.99) - 1] ?? 0

function tell(what: string, figures: string, holds: boolean): void {
  if (!holds) process.exitCode = 1
  process.stdout.write(`${holds ? 'holds ' : 'MISSED'}  ${what.padEnd(58)} ${figures}\n`)
}

const nasty: Readonly<Record<string, Fault>> = {
  'stalls after the root': { kind: 'stall', after: 200 },
  'stalls at half': { kind: 'stall', after: mib / 2 },
  'drips 16 KiB/s': { kind: 'pace', bytesPerSecond: 16 * 1024 },
  'drips 64 KiB/s': { kind: 'pace', bytesPerSecond: 64 * 1024 },
  'drips 256 KiB/s': { kind: 'pace', bytesPerSecond: 256 * 1024 },
  'drips 1 MiB/s': { kind: 'pace', bytesPerSecond: mib },
}

async function manyFiles(): Promise<void> {
  const upstreams = await start(
    2,
    Array.from({ length: files }, () => 1),
  )
  const [bad = '', honest = ''] = upstreams.urls
  await upstreams.set({ index: 1, delayMs: tripMs })
  const readAll = async (at: TestGateway): Promise<number[]> => {
    const times: number[] = []
    for (const { cid, bytes } of upstreams.files) {
      const answer = await readSlices(`${at.url}/ipfs/${cid}`)
      if (answer.status !== 200 || answer.bytes !== bytes) times.push(Number.POSITIVE_INFINITY)
      else times.push(answer.ms)
    }
    await at.close()
    return times
  }
  const alone = p99(await readAll(await gatewayOver([honest], 'auto')))
  for (const [name, fault] of Object.entries(nasty))
    for (const hedge of ['auto', '0s', '200ms'])
      for (const order of ['nasty', 'honest']) {
        const before = await upstreams.set({ index: 0, fault, delayMs: 0 })
        const times = await readAll(await gatewayOver(order === 'nasty' ? [bad, honest] : [honest, bad], hedge))
        const asked = (await upstreams.set({ index: 0, fault, delayMs: 0 })) - before
        const whole = times.filter(Number.isFinite).length
        const each = (asked - 2) / (files - 1)
        const holds = whole === files && p99(times) <= 3 * alone && (hedge === '0s' || each <= 1.15)
        tell(
          `1 MiB, one ${name}, ${order} first, hedge ${hedge}`,
          `${whole} of ${files}, p99 ${p99(times).toFixed(0)} ms (alone ${alone.toFixed(0)}), ${each.toFixed(2)} requests each`,
          holds,
        )
      }
  upstreams.child.disconnect()
}

async function largeFile(): Promise<void> {
  const upstreams = await start(2, [2, largeMib])
  const [bad = '', honest = ''] = upstreams.urls
  const [lesson, large] = upstreams.files
  if (!lesson || !large) throw new Error('no files')
  await upstreams.set({ index: 1, delayMs: tripMs })
  for (const readers of [1, 200])
    for (const share of [0.01, 0.05, 0.5, 0.95]) {
      const at = await gatewayOver([bad, honest], 'auto')
      await upstreams.set({ index: 0, fault: { kind: 'stall', after: Math.round(lesson.bytes * share) }, delayMs: 0 })
      await readSlices(`${at.url}/ipfs/${lesson.cid}`)
      await upstreams.set({ index: 0, fault: { kind: 'stall', after: Math.round(large.bytes * share) }, delayMs: 0 })
      const answers = await Promise.all(
        Array.from({ length: readers }, () => readSlices(`${at.url}/ipfs/${large.cid}`)),
      )
      const gap = Math.max(...answers.map(({ gapMs }) => gapMs))
      const whole = answers.filter(({ bytes }) => bytes === large.bytes).length
      tell(
        `${largeMib} MiB, its source stalls at ${share * 100} %, ${readers} readers`,
        `${whole} whole, longest gap ${gap.toFixed(0)} ms`,
        whole === readers && gap <= 500,
      )
      await at.close()
    }
  for (const readers of [1, 200]) {
    await upstreams.set({ index: 1, fault: { kind: 'noCar', status: 406 }, delayMs: tripMs })
    const at = await gatewayOver([honest], 'auto')
    const answers = await Promise.all(Array.from({ length: readers }, () => readSlices(`${at.url}/ipfs/${large.cid}`)))
    const ms = Math.max(...answers.map((one) => one.ms))
    const rate = (readers * large.bytes) / ms / 1000
    tell(
      `${largeMib} MiB, single blocks only, round trip ${tripMs} ms, ${readers} readers`,
      `${rate.toFixed(0)} MB/s in all`,
      rate >= 40,
    )
    await at.close()
  }
  upstreams.child.disconnect()
}

await manyFiles()
await largeFile()
