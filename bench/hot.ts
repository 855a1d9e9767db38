// `npm run bench`: hot hits per second of the whole gateway against bare node:http writing the same bytes, on the same
// core, in turns, in one run. What counts is the ratio, taken per second of processor time: other work on the machine
// stretches the clock on the wall, and hardly that one. The figures beside it are of this machine at this moment.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

const rounds = Number(process.env['BENCH_ROUNDS'] ?? 7)
const seconds = process.env['BENCH_SECONDS'] ?? '2'
const least = 0.9

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const hasTaskset = spawnSync('taskset', ['--version']).status === 0
const pinned = (core: string, args: string[]): [string, string[]] =>
  hasTaskset ? ['taskset', ['-c', core, process.execPath, ...args]] : [process.execPath, args]

function firstLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    if (!child.stdout) return reject(new Error('no output'))
    createInterface({ input: child.stdout }).once('line', resolve)
    child.once('exit', (code) => reject(new Error(`it ended with ${code}`)))
  })
}

async function serve(which: string): Promise<{ child: ChildProcess; url: string; path: string }> {
  const child = spawn(...pinned('0', [file('servers.ts'), which]), { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] })
  return { child, ...(JSON.parse(await firstLine(child)) as { url: string; path: string }) }
}

type Server = Awaited<ReturnType<typeof serve>>

/** Processor seconds the server has used so far. */
function used({ child }: Server): Promise<number> {
  return new Promise((resolve) => {
    child.once('message', (usage) => {
      const { user, system } = usage as { user: number; system: number }
      resolve((user + system) / 1e6)
    })
    child.send('usage')
  })
}

async function load(server: Server): Promise<{ perSecond: number; perCpuSecond: number }> {
  const before = await used(server)
  const child = spawn(...pinned('1', [file('load.ts'), server.url, server.path, seconds]), {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const { answers, perSecond, wrong } = JSON.parse(await firstLine(child)) as Record<string, number>
  if (wrong) throw new Error(`${wrong} connections broke`)
  return { perSecond: perSecond ?? 0, perCpuSecond: (answers ?? 0) / ((await used(server)) - before) }
}

const median = (values: number[]): number => [...values].sort((one, other) => one - other)[values.length >> 1] ?? 0

const bare = await serve('bare')
const cidgate = await serve('cidgate')
try {
  await load(bare)
  await load(cidgate) // warm
  const figures: { bare: number; cidgate: number; ratio: number; wall: number }[] = []
  for (let round = 0; round < rounds; round++) {
    // The one that goes first changes: a machine that gets slower or quicker favours neither.
    const first = round % 2 === 0 ? bare : cidgate
    const one = await load(first)
    const other = await load(first === bare ? cidgate : bare)
    const [b, c] = first === bare ? [one, other] : [other, one]
    figures.push({
      bare: b.perCpuSecond,
      cidgate: c.perCpuSecond,
      ratio: c.perCpuSecond / b.perCpuSecond,
      wall: c.perSecond / b.perSecond,
    })
  }
  const ratio = median(figures.map((figure) => figure.ratio))
  const round = (value: number): string => Math.round(value).toString().padStart(7)
  process.stdout.write(
    `hot hits, ~1 KB of JSON, one core${hasTaskset ? '' : ' (taskset is missing: not pinned)'}, ${rounds} rounds in turns\n` +
      `  bare node:http  ${round(median(figures.map((figure) => figure.bare)))} requests per processor second\n` +
      `  cidgate         ${round(median(figures.map((figure) => figure.cidgate)))} requests per processor second\n` +
      `  ratio           ${ratio.toFixed(3)} (rounds: ${figures.map((figure) => figure.ratio.toFixed(2)).join(' ')}; wanted: ${least} or better)\n` +
      `  by the clock    ${median(figures.map((figure) => figure.wall)).toFixed(3)}\n`,
  )
  if (ratio < least) process.exitCode = 1
} finally {
  bare.child.kill('SIGTERM')
  cidgate.child.kill('SIGTERM')
}
