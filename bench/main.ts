// `npm run bench`: every row of `work/rows.ts`, in alternation with its peers, and every trial of
// `trials.ts`. `--quick` shortens it, `--only hot,crowd` selects. A complete run, or any with
// `--write`, writes its figures to docs/measured.md and draws docs/images/bench.svg. `--kept FILE`
// resumes an interrupted run. Missing peers are named.
import { appendFileSync, existsSync, readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { machine, print, type Run, writeReport } from './report.ts'
import { runTrial, trials } from './trials.ts'
import { type Measured, measure } from './work/measure.ts'
import { rows } from './work/rows.ts'

const { values } = parseArgs({
  options: {
    quick: { type: 'boolean' },
    only: { type: 'string' },
    write: { type: 'boolean' },
    kept: { type: 'string' },
  },
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

const kept = createResultLog(values.kept)
const before = machine()
const measured: Measured[] = []
for (const row of rows.filter(isWanted)) {
  const figures = await kept(row.id, () => measure(row, scale))
  measured.push({ ...figures, row })
  process.stdout.write(`\n${print({ ...figures, row })}\n`)
}
const tried: Run['tried'][number][] = []
for (const trial of trials.filter(isWanted)) {
  process.stdout.write(`\n${trial.id}: ${trial.what}\n`)
  tried.push({ trial, lines: await kept(trial.id, () => runTrial(trial, isQuick)) })
}
if (values.write || !(only || isQuick)) {
  const files = writeReport({ before, after: machine(), scale, measured, tried })
  process.stdout.write(`\nwritten: ${files.join(', ')}\n`)
}

/** The results so far, one line each, so that an interrupted run can be resumed. */
function createResultLog(file: string | undefined) {
  const lines = file !== undefined && existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : []
  const had = new Map(lines.filter(Boolean).map((line) => JSON.parse(line) as [string, unknown]))
  return async <T>(id: string, work: () => Promise<T>): Promise<T> => {
    if (had.has(id)) return had.get(id) as T
    const what = await work()
    if (file !== undefined) appendFileSync(file, `${JSON.stringify([id, what])}\n`)
    return what
  }
}
