// `npm run profile -- <id>`: profiles the gateway under a row of `npm run bench`. Prints the
// functions with the sorted self and total time, and the path of the profile for Chrome's devtools.
// The start and the first round do not count.
import { mkdir, readdir, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { once } from './measure.ts'
import { rows } from './rows.ts'
import { tempFolder } from './servers.ts'

type Node = {
  readonly id: number
  readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number }
  readonly children?: readonly number[]
}
type Profile = {
  readonly nodes: readonly Node[]
  /** Microseconds of a clock that all processes share. */
  readonly startTime: number
  readonly samples: readonly number[]
  readonly timeDeltas: readonly number[]
}

const rounds = 3
const lines = 25
const root = fileURLToPath(new URL('../..', import.meta.url))

const row = rows.find(({ id }) => id === process.argv[2])
if (!row) {
  process.stderr.write(`name a row: npm run profile -- <id> (there are ${rows.map(({ id }) => id).join(', ')})\n`)
  process.exit(2)
}

const folder = join(tmpdir(), `cidgate-profile-${row.id}-${process.pid}`)
await mkdir(folder, { recursive: true })
process.env['CIDGATE_BENCH_PEERS'] = 'none'
process.env['CIDGATE_BENCH_PROFILE'] = folder
const { contenders, others } = await row.setUp({ seconds: 4, rounds, isQuick: true })
const own = contenders.find(({ name }) => name === 'cidgate')
if (!own) throw new Error('no gateway in this row')
const loads = await tempFolder()
let began = 0
let figure = 0
try {
  for (let round = 0; round <= rounds; round++) {
    if (round === 1) began = Number(process.hrtime.bigint() / 1000n)
    figure = (await once(own, round, row, loads)).cpu
  }
} finally {
  for (const { stop } of [...contenders.map(({ server }) => server), ...others]) await stop()
  await rm(loads, { recursive: true, force: true })
}
const ended = Number(process.hrtime.bigint() / 1000n)

const [name] = (await readdir(folder)).filter((one) => one.endsWith('.cpuprofile'))
const file = join(folder, name ?? '')
const profile = JSON.parse(await readFile(file, 'utf8')) as Profile
const nodes = new Map(profile.nodes.map((node) => [node.id, node]))
const parents = new Map(profile.nodes.flatMap(({ id, children = [] }) => children.map((child) => [child, id] as const)))

const self = new Map<string, number>()
const cumulative = new Map<string, number>()
let total = 0
let at = profile.startTime
for (const [index, id] of profile.samples.entries()) {
  const took = profile.timeDeltas[index] ?? 0
  at += took
  const words = wordsOf(nodes.get(id))
  if (at < began || at > ended || words === '(idle)') continue
  total += took
  add(self, words, took)
  const stack = new Set<string>()
  for (let one: number | undefined = id; one !== undefined; one = parents.get(one)) stack.add(wordsOf(nodes.get(one)))
  for (const one of stack) add(cumulative, one, took)
}

function wordsOf(node: Node | undefined): string {
  if (!node) return '?'
  const { functionName, url, lineNumber } = node.callFrame
  const path = url.startsWith('file:') ? relative(root, fileURLToPath(url)) : url
  const place = path === '' ? '' : ` ${path}:${lineNumber + 1}`
  return `${functionName === '' ? '(anonymous)' : functionName}${place}`
}

function add(to: Map<string, number>, key: string, took: number): void {
  to.set(key, (to.get(key) ?? 0) + took)
}

function print(title: string, of: ReadonlyMap<string, number>): void {
  process.stdout.write(`\n${title}\n`)
  const sorted = [...of].filter(([words]) => words !== '(root)').sort(([, one], [, other]) => other - one)
  for (const [words, took] of sorted.slice(0, lines))
    process.stdout.write(
      `${((took / total) * 100).toFixed(1).padStart(6)} %  ${(took / 1000).toFixed(0).padStart(6)} ms  ${words}\n`,
    )
}

process.stdout.write(
  `${row.id}: ${row.work}\n${figure.toFixed(0)} ${row.unit} per processor second while it was watched; ${(total / 1e6).toFixed(1)} s of its main thread\n`,
)
print('by themselves', self)
print('with all that they call', cumulative)
process.stdout.write(`\nthe complete profile: ${file}\n`)
