// `npm run faults`: the complete fault matrix, each row a real run through HTTP, one behind the other. It writes what it measured into
// docs/measured.md, and ends with 1 when a promise was broken. `--only upstreams` runs one section and writes its table alone;
// `--histories 10000` runs so many random histories of the model test instead, `--concurrency 8` in so many processes, since they mostly wait;
// `--seed` those of a run before, `--kill` with a gateway that is a process of its own; `--path` and `--replay` run the one that failed.
import { readFile, writeFile } from 'node:fs/promises'
import { availableParallelism, loadavg } from 'node:os'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { bombs } from './bombs/bombs.ts'
import { bombRow } from './bombs/row.ts'
import { attacks } from './clients/attacks.ts'
import { clientRow } from './clients/row.ts'
import { diskFaults, diskRow, needsOf } from './disk.ts'
import { missing, type Need, skippedRow } from './needs.ts'
import { processFaults } from './process/faults.ts'
import { processRow } from './process/row.ts'
import { providerFaults, providerRow } from './providers.ts'
import { brokenCells, full, type Row, type Section, skippedRows, tableOf } from './rows.ts'
import { redisFaults, redisRow, storeFaults, storeRow } from './stores.ts'
import { upstreamFaults, upstreamRow } from './upstreams.ts'
import { wireFaults } from './wire/faults.ts'
import { idleCrowdRow, idleCrowds } from './wire/idle-crowd.ts'
import { wireRow } from './wire/row.ts'

const { values } = parseArgs({
  options: {
    only: { type: 'string' },
    histories: { type: 'string' },
    concurrency: { type: 'string', default: '1' },
    seed: { type: 'string' },
    kill: { type: 'boolean', default: false },
    path: { type: 'string' },
    replay: { type: 'string' },
  },
})

if (values.histories !== undefined) {
  const { path, replay: replayPath, kill: isKilled } = values
  const [histories, processes] = [Number(values.histories), Number(values['concurrency'])]
  const seed = Number(values.seed ?? Date.now() % 2 ** 31)
  console.log(`${histories} histories of seed ${seed}${isKilled ? ', each gateway a process that is killed' : ''}`)
  // The one that failed is one.
  if (processes > 1 && path === undefined) {
    const { runAtOnce } = await import('../model/at-once.ts')
    if (!(await runAtOnce({ processes, histories, seed, isKilled }))) process.exit(1)
  } else {
    const { runHistories } = await import('../model/histories.ts')
    const onPassed = (count: number) => count % 20 === 0 && console.log(`${count} passed`)
    await runHistories({ histories, seed, isKilled, path, replayPath, onPassed })
  }
  console.log('every history kept what was promised')
  process.exit(0)
}

type PlannedRow = { readonly fault: string; readonly needs: readonly Need[]; readonly make: () => Promise<Row> }
type Plan = Omit<Section, 'rows'> & { readonly name: string; readonly rows: readonly PlannedRow[] }

/** What runs in this process alone needs nothing else. */
const planned = <Fault extends { readonly name: string }>(
  faults: readonly Fault[],
  make: (fault: Fault) => Promise<Row>,
  needs: (fault: Fault) => readonly Need[] = () => [],
): PlannedRow[] => faults.map((fault) => ({ fault: fault.name, needs: needs(fault), make: () => make(fault) }))

/** They read /proc of a gateway that they start. */
const linux = (): readonly Need[] => ['linux']

const plans: readonly Plan[] = [
  {
    name: 'upstreams',
    title: 'One upstream',
    columns: ['alone', 'before a healthy one', 'recovered'],
    rows: planned(upstreamFaults, (fault) => upstreamRow(fault, full)),
  },
  {
    name: 'stores',
    title: 'An S3 that holds the blocks',
    columns: ['without an upstream', 'before a healthy upstream', 'recovered'],
    rows: planned(storeFaults, (fault) => storeRow(fault, full)),
  },
  {
    name: 'redis',
    title: 'A Redis that holds the blocks',
    columns: ['without an upstream', 'before a healthy upstream', 'recovered'],
    rows: planned(redisFaults, (fault) => redisRow(fault, full)),
  },
  {
    name: 'providers',
    title: 'A Kubo node that is given uploads',
    columns: ['alone', 'with the embedded provider', 'recovered'],
    rows: planned(providerFaults, (fault) => providerRow(fault, full)),
  },
  {
    name: 'disk',
    title: 'The disk of a gateway that keeps pins and a tier there',
    columns: ['an upload; what was uploaded before', 'reads before a healthy upstream', 'recovered'],
    rows: planned(diskFaults, (fault) => diskRow(fault, full), needsOf),
  },
  {
    name: 'process',
    title: 'The process, while 16 clients read and 4 upload',
    columns: ['alone, what was uploaded', 'reads', 'uploads', 'afterwards, and after a restart'],
    rows: planned(processFaults, processRow, linux),
  },
  {
    name: 'requests',
    title: 'Requests that no ordinary client sends',
    columns: ['answered', 'a hot answer meanwhile', 'afterwards'],
    rows: [...planned(wireFaults, wireRow, linux), ...planned(idleCrowds, idleCrowdRow, linux)],
  },
  {
    name: 'clients',
    title: 'One client, and another that asks for a hot file',
    columns: ['hot answers', 'resident, heap of 256 MiB', 'afterwards'],
    rows: planned(attacks, clientRow, linux),
  },
  {
    name: 'bombs',
    title: 'What may stop the event loop: two clients, and another that asks for a hot file',
    columns: ['answers', 'the longest turn of the loop', 'hot answers', 'resident'],
    rows: planned(bombs, bombRow, linux),
  },
]

async function run({ rows, ...plan }: Plan): Promise<Section> {
  const done: Row[] = []
  for (const { fault, needs, make } of rows) {
    const reason = await missing(needs)
    if (reason !== undefined) {
      done.push(skippedRow(fault, reason, plan.columns))
      console.log(`${plan.name}: ${fault}: SKIPPED, ${reason}`)
      continue
    }
    const made = await make()
    done.push(made)
    const cells = made.cells.map(({ measured, broken }) =>
      [measured, ...broken.map((what) => `BROKEN ${what}`)].join('; '),
    )
    console.log(`${plan.name}: ${made.fault}: ${cells.join(' | ')}`)
  }
  return { ...plan, rows: done }
}

const [begin, end] = ['<!-- npm run faults: begin -->', '<!-- npm run faults: end -->']

/** Tables of sections that did not run stay as they are. */
async function writeTables(sections: ReadonlyMap<string, Section>, loads: readonly number[]): Promise<void> {
  const file = fileURLToPath(new URL('../../../docs/measured.md', import.meta.url))
  const page = await readFile(file, 'utf8')
  const [from, to] = [page.indexOf(begin), page.indexOf(end)]
  if (from < 0 || to < from) throw new Error(`docs/measured.md has lost the lines ${begin} and ${end}`)
  const load = `${Math.min(...loads).toFixed(1)} to ${Math.max(...loads).toFixed(1)}`
  const about = `Node ${process.versions.node}, ${availableParallelism()} processors, load ${load}.`
  const before = page.slice(from, to).split(/^(?=### )/m)
  const tables = plans.flatMap(({ name, title }) => {
    const section = sections.get(name)
    if (section) return [tableOf(section).replace('\n\n', `\n\n${about}\n\n`)]
    return before.filter((table) => table.startsWith(`### ${title}\n`)).map((table) => table.trim())
  })
  await writeFile(file, `${page.slice(0, from)}${begin}\n\n${tables.join('\n\n')}\n\n${page.slice(to)}`)
}

const sections = new Map<string, Section>()
const loads: number[] = []
for (const plan of plans) {
  if (values.only !== undefined && values.only !== plan.name) continue
  sections.set(plan.name, await run(plan))
  loads.push(loadavg()[0] ?? 0)
}
const broken = [...sections.values()].flatMap(brokenCells)
const skipped = [...sections.values()].flatMap(skippedRows)
for (const one of skipped) console.log(`skipped-${one}`)
for (const one of broken) console.log(`broken: ${one}`)
await writeTables(sections, loads)
const but = skipped.length === 0 ? '' : `; ${skipped.length} rows were skipped, and nothing is known of them`
console.log(`${broken.length === 0 ? 'every promise was kept' : `${broken.length} promises were broken`}${but}`)
process.exit(broken.length === 0 ? 0 : 1)
