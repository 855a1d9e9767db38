// `npm run bench:work`: every row of `rows.ts`, in turns with its peers, in one run. `--quick` takes fewer and shorter rounds,
// `--only hot,miss` some rows. A peer that is not installed is named and left out.
import { parseArgs } from 'node:util'
import { type Measured, measure } from './measure.ts'
import { rows } from './rows.ts'

const { values } = parseArgs({
  options: { quick: { type: 'boolean' }, only: { type: 'string' }, json: { type: 'boolean' } },
})
const scale = values.quick ? { seconds: 2, rounds: 3, isQuick: true } : { seconds: 4, rounds: 7, isQuick: false }
const only = values.only?.split(',')
const unknown = only?.filter((id) => !rows.some((row) => row.id === id)) ?? []
if (unknown.length > 0) {
  process.stderr.write(`there is no row ${unknown.join(', ')} (there are ${rows.map(({ id }) => id).join(', ')})\n`)
  process.exit(2)
}

const number = (value: number): string =>
  value >= 10_000 ? `${(value / 1000).toFixed(1)} k` : value >= 100 ? value.toFixed(0) : value.toFixed(1)

const mib = (bytes: number): string => (bytes / 2 ** 20).toFixed(0)

function print({ row, figures, missing }: Measured): void {
  process.stdout.write(`\n${row.id}: ${row.work} (${row.unit} per processor second of the server)\n`)
  for (const { name, perCpuSecond, rounds, perSecond, residentBytes, peakBytes, ratio } of figures) {
    const aim = row.aims[name]
    const against = ratio === undefined ? '' : `cidgate ${ratio.toFixed(2)} x`
    const wanted = aim === undefined ? '' : `, aim ${aim}${ratio !== undefined && ratio < aim ? ', NOT MET' : ''}`
    const spread = `${number(Math.min(...rounds))} to ${number(Math.max(...rounds))}`
    process.stdout.write(
      `  ${name.padEnd(14)}${number(perCpuSecond).padStart(9)}  (${spread}; by the clock ${number(perSecond)}; ${mib(residentBytes)} MiB, at most ${mib(peakBytes)}) ${against}${wanted}\n`,
    )
  }
  for (const name of missing) process.stdout.write(`  ${name.padEnd(14)}  not installed\n`)
}

for (const row of rows) if (!only || only.includes(row.id)) print(await measure(row, scale))
