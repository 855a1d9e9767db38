// `npm run bench`: every row of `work/rows.ts`, in turns with its peers, and every trial of `trials.ts`, in one run. `--quick` makes
// it short, `--only hot,race` takes some. The whole run, or any with `--write`, writes its figures into docs/performance.md and
// draws docs/images/bench.svg. A peer that is not installed is named and left out.
import { parseArgs } from 'node:util'
import { machine, print, type Run, writeReport } from './report.ts'
import { runTrial, trials } from './trials.ts'
import { type Measured, measure } from './work/measure.ts'
import { rows } from './work/rows.ts'

const { values } = parseArgs({
  options: { quick: { type: 'boolean' }, only: { type: 'string' }, write: { type: 'boolean' } },
})
const isQuick = values.quick === true
const scale = isQuick ? { seconds: 1, rounds: 3, isQuick } : { seconds: 4, rounds: 7, isQuick }
const ids = [...rows, ...trials].map(({ id }) => id)
const only = values.only?.split(',')
const unknown = only?.filter((id) => !ids.includes(id)) ?? []
if (unknown.length > 0) {
  process.stderr.write(`there is no row ${unknown.join(', ')} (there are ${ids.join(', ')})\n`)
  process.exit(2)
}
const isWanted = ({ id }: { readonly id: string }): boolean => !only || only.includes(id)

const before = machine()
const measured: Measured[] = []
for (const row of rows.filter(isWanted)) {
  const one = await measure(row, scale)
  measured.push(one)
  process.stdout.write(`\n${print(one)}\n`)
}
const tried: Run['tried'][number][] = []
for (const trial of trials.filter(isWanted)) {
  process.stdout.write(`\n${trial.id}: ${trial.what}\n`)
  tried.push({ trial, lines: await runTrial(trial, isQuick) })
}
if (values.write || !(only || isQuick)) {
  const files = writeReport({ before, after: machine(), scale, measured, tried })
  process.stdout.write(`\nwritten: ${files.join(', ')}\n`)
}
