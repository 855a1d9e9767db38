// `npm run bench:guard`: fails when the gateway became much slower than what it is measured against in the same run, per second
// of processor time, in turns, by the median of the rounds. A bound that is missed is measured once more from the start, with
// new processes: what a machine does once is no regression. docs/performance.md says why the bounds are what they are.
import { randomBytes } from 'node:crypto'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { start } from './child.ts'
import { measure, median } from './measure.ts'
import { type Row, rows } from './rows.ts'
import { pinned, tempFolder } from './servers.ts'

process.env['CIDGATE_BENCH_PEERS'] = 'none'

type Bound = {
  readonly id: string
  readonly peer: string
  readonly least: number
  readonly ratio: () => Promise<number>
}

const scale = { seconds: 1, rounds: 3, isQuick: true }
const mib = 2 ** 20

const rowOf = (id: string): Row => {
  const row = rows.find((one) => one.id === id)
  if (!row) throw new Error(`there is no row ${id}`)
  return row
}

async function against(id: string, peer: string): Promise<number> {
  const { figures } = await measure(rowOf(id), scale)
  const ratio = figures.find(({ name }) => name === peer)?.ratio
  if (ratio === undefined) throw new Error(`${id}: ${peer} was not measured`)
  return ratio
}

/** The loop runs before and after the gateway, so that a machine that gets slower or quicker favours none. */
async function againstLoop(id: string): Promise<number> {
  const folder = await tempFolder()
  try {
    for (let index = 0; index < 64; index++) await writeFile(join(folder, String(index)), randomBytes(mib))
    const before = await loop(folder)
    const { figures } = await measure(rowOf(id), scale)
    const own = figures.find(({ name }) => name === 'cidgate')?.perCpuSecond ?? 0
    return own / median([...before, ...(await loop(folder)), ...(await loop(folder))])
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

async function loop(folder: string): Promise<number[]> {
  const script = fileURLToPath(new URL('loop.ts', import.meta.url))
  const child = start(...pinned(0, process.execPath, [script, folder, String(scale.seconds)]))
  return [Number(await child.line)]
}

const bounds: readonly Bound[] = [
  { id: 'hot', peer: 'bare', least: 0.8, ratio: () => against('hot', 'bare') },
  { id: 'miss', peer: 'pass-through', least: 0.5, ratio: () => against('miss', 'pass-through') },
  { id: 'big', peer: 'a read-and-hash loop', least: 0.4, ratio: () => againstLoop('big') },
]

/** What could not be measured counts as missed, and is tried once more like what was too slow. */
async function tried({ id, ratio }: Bound): Promise<number> {
  try {
    return await ratio()
  } catch (error) {
    process.stdout.write(`${id}: ${String(error)}\n`)
    return 0
  }
}

let isSlow = false
for (const bound of bounds) {
  const { id, peer, least } = bound
  const first = await tried(bound)
  const second = first < least ? await tried(bound) : undefined
  const best = Math.max(first, second ?? 0)
  const tries = second === undefined ? '' : ` (${first.toFixed(2)} and ${second.toFixed(2)}, measured twice)`
  const words = `${id}: ${best.toFixed(2)} of ${peer}${tries}, at least ${least}`
  process.stdout.write(`${words}${best < least ? ': TOO SLOW' : ''}\n`)
  if (best < least) isSlow = true
}
if (isSlow) {
  process.stderr.write('the gateway became slower: `npm run profile -- <id>` says where its time goes\n')
  process.exitCode = 1
}
