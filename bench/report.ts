// Formats a run: as text for the terminal, and as the section of docs/measured.md between its
// markers, with a plot.
import { readFileSync, writeFileSync } from 'node:fs'
import { cpus, loadavg, release, totalmem } from 'node:os'
import { fileURLToPath } from 'node:url'
import { bars } from './bars.ts'
import type { Trial } from './trials.ts'
import { type Figure, isMissed, type Measured } from './work/measure.ts'
import type { Scale } from './work/rows.ts'

type Machine = { readonly text: string; readonly load: number }
export type Run = {
  readonly before: Machine
  readonly after: Machine
  readonly scale: Scale
  readonly measured: readonly Measured[]
  readonly tried: readonly { readonly trial: Trial; readonly lines: readonly string[] }[]
}

export function machine(): Machine {
  const [{ model = 'unknown' } = {}] = cpus()
  const memory = Math.round(totalmem() / 2 ** 30)
  const text = `${cpus().length} x ${model.trim()}, ${memory} GiB, Linux ${release()}, Node ${process.versions.node}`
  return { text, load: loadavg()[0] ?? 0 }
}

export function print({ row, figures, missing }: Measured): string {
  const lines = figures.map((one) => {
    const { name, work, rounds, perSecond, residentBytes, peakBytes, ratio } = one
    const aim = row.aims[name]
    const against = ratio === undefined ? '' : ` cidgate ${ratio.toFixed(2)} x`
    const wanted = aim === undefined ? '' : `, aim ${aim}${isMissed(row, one) ? ', NOT MET' : ''}`
    const figure = `${number(work).padStart(9)}  (${spread(rounds)}; by the clock ${number(perSecond)}`
    return `  ${name.padEnd(14)}${figure}; ${mib(residentBytes)} MiB, at most ${mib(peakBytes)})${against}${wanted}`
  })
  const absent = missing.map((name) => `  ${name.padEnd(14)}  not installed`)
  return [
    `${row.id}: ${row.work} (${row.unit} per ${row.isByClock ? 'second; time of each' : 'processor second of the server'})`,
    ...lines,
    ...absent,
  ].join('\n')
}

const page = fileURLToPath(new URL('../docs/measured.md', import.meta.url))
const plot = fileURLToPath(new URL('../docs/images/bench.svg', import.meta.url))
const [begin, end] = ['<!-- written by npm run bench -->', '<!-- end of what npm run bench wrote -->']

/** Throws if the page has lost its markers. */
export function writeReport(run: Run): readonly string[] {
  const text = readFileSync(page, 'utf8')
  const [from, to] = [text.indexOf(begin), text.indexOf(end)]
  if (from < 0 || to < from) throw new Error(`docs/measured.md needs the lines ${begin} and ${end}, in this order`)
  writeFileSync(page, `${text.slice(0, from + begin.length)}\n${section(run)}${text.slice(to)}`)
  writeFileSync(plot, bars(barsOf(run)))
  return ['docs/measured.md', 'docs/images/bench.svg']
}

export function section({ before, after, scale, measured, tried }: Run): string {
  const how = `${scale.rounds} rounds of ${scale.seconds} s${scale.isQuick ? ' (`--quick`)' : ''}`
  return `
${before.text}; load ${before.load.toFixed(1)} when it began and ${after.load.toFixed(1)} when it ended; ${how}, the median of each.

![The gateway's work per processor second as a share of each peer's, with the aims](images/bench.svg)

| row | of | per processor second | the gateway's share | aim |
|---|---|---|---|---|
${measured.flatMap(rowsOf).join('\n')}
${tried.map(({ trial, lines }) => `\n\`${trial.id}\`, ${trial.what}:\n\n\`\`\`text\n${lines.map((line) => line.trimEnd()).join('\n')}\n\`\`\`\n`).join('')}
`
}

function rowsOf({ row, figures, missing }: Measured): string[] {
  const line = (one: Figure): string => {
    const { name, work, ratio } = one
    const aim = row.aims[name]
    const wanted = aim === undefined ? '' : `${aim}${isMissed(row, one) ? ', not met' : ', met'}`
    const cells = [
      `\`${row.id}\``,
      name,
      `${number(work)}${row.isByClock ? ' by the clock' : ''}`,
      ratio === undefined ? '' : ratio.toFixed(2),
      wanted,
    ]
    return `| ${cells.join(' | ')} |`
  }
  return [...figures.map(line), ...missing.map((name) => `| \`${row.id}\` | ${name} | not installed | | |`)]
}

const barsOf = ({ measured }: Run) =>
  measured.flatMap(({ row, figures }) =>
    figures.flatMap((one) =>
      one.ratio === undefined
        ? []
        : [
            {
              name: `${row.id} of ${one.name}`,
              ratio: one.ratio,
              aim: row.aims[one.name],
              isMissed: isMissed(row, one),
            },
          ],
    ),
  )

const spread = (rounds: readonly number[]): string => `${number(Math.min(...rounds))} to ${number(Math.max(...rounds))}`
const number = (value: number): string =>
  value >= 10_000 ? `${(value / 1000).toFixed(1)} k` : value >= 100 ? value.toFixed(0) : value.toFixed(1)
const mib = (bytes: number): string => (bytes / 2 ** 20).toFixed(0)
