// A row of the fault matrix: one fault, what is promised while it lasts and after it, and what a run measured.

export type Cell = { readonly measured: string /** What breaks the promise. */; readonly broken: readonly string[] }

export type Row = {
  readonly fault: string
  readonly promised: string
  readonly cells: readonly Cell[]
  /** Why this machine could not make the fault: nothing was measured. */
  readonly skipped?: string
}

export type Section = {
  readonly title: string
  /** The names of the cells. */
  readonly columns: readonly string[]
  readonly rows: readonly Row[]
}

/** How long a run waits and what it allows: the short form of `npm test` holds statuses and bytes, and no times. */
export type Form = {
  readonly deadlineMs: number
  readonly files: number
  /** Files that are there to see whether a store is well again. */
  readonly spareFiles: number
  /** Infinity: not held. */
  readonly maxMs: number
  readonly recoveredWithinMs: number
  /** How long it is watched whether one that is kept away from is left alone; 0: for a few reads. */
  readonly watchedMs: number
}

export const full: Form = {
  deadlineMs: 2000,
  files: 4,
  spareFiles: 100,
  maxMs: 1000,
  recoveredWithinMs: 5000,
  watchedMs: 2000,
}
export const short: Form = {
  deadlineMs: 20_000,
  files: 1,
  spareFiles: 20,
  maxMs: Number.POSITIVE_INFINITY,
  recoveredWithinMs: 30_000,
  watchedMs: 0,
}

export const inMs = (ms: number): string => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`)

export const brokenCells = ({ rows }: Section): string[] =>
  rows.flatMap(({ fault, cells }) => cells.flatMap(({ broken }) => broken.map((what) => `${fault}: ${what}`)))

export const skippedRows = ({ rows }: Section): string[] =>
  rows.flatMap(({ fault, skipped }) => (skipped === undefined ? [] : [`${fault}: ${skipped}`]))

const escaped = (text: string): string => text.replaceAll('|', '\\|')

/** Shortens the phrases that most cells share, so that a table is read at a glance. */
const shortened = (text: string): string =>
  text
    .replaceAll(/(\d+) of \1 complete, at most/g, '≤')
    .replaceAll(/complete after (\d)/g, '$1')
    .replaceAll('next attempt in', 'not asked in')

export function tableOf({ title, columns, rows }: Section): string {
  const heads = ['fault', ...columns]
  const lines = rows.map(({ fault, cells, skipped }) => {
    const shown =
      skipped === undefined
        ? cells.map(({ measured, broken }) => `${broken.length > 0 ? '**broken:** ' : ''}${shortened(measured)}`)
        : [`**skipped:** ${skipped}`, ...cells.slice(1).map(() => '')]
    return `| ${[fault, ...shown].map(escaped).join(' | ')} |`
  })
  return [`### ${title}`, '', `| ${heads.join(' | ')} |`, `|${'---|'.repeat(heads.length)}`, ...lines].join('\n')
}
