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
  readonly mostMs: number
  readonly mendedWithinMs: number
  /** How long it is watched whether one that is kept away from is left alone; 0: for a few reads. */
  readonly watchedMs: number
}

export const full: Form = {
  deadlineMs: 2000,
  files: 4,
  spareFiles: 100,
  mostMs: 1000,
  mendedWithinMs: 5000,
  watchedMs: 2000,
}
export const short: Form = {
  deadlineMs: 20_000,
  files: 1,
  spareFiles: 20,
  mostMs: Number.POSITIVE_INFINITY,
  mendedWithinMs: 30_000,
  watchedMs: 0,
}

export const inMs = (ms: number): string => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`)

export const brokenCells = ({ rows }: Section): string[] =>
  rows.flatMap(({ fault, cells }) => cells.flatMap(({ broken }) => broken.map((what) => `${fault}: ${what}`)))

export const skippedRows = ({ rows }: Section): string[] =>
  rows.flatMap(({ fault, skipped }) => (skipped === undefined ? [] : [`${fault}: ${skipped}`]))

const escaped = (text: string): string => text.replaceAll('|', '\\|')

export function tableOf({ title, columns, rows }: Section): string {
  const heads = ['fault', 'promised', ...columns]
  const lines = rows.map(({ fault, promised, cells, skipped }) => {
    if (skipped !== undefined)
      return `| ${[fault, `**skipped:** ${skipped}`, ...cells.map(() => '')].map(escaped).join(' | ')} |`
    const shown = cells.map(({ measured, broken }) => (broken.length > 0 ? `**broken:** ${measured}` : measured))
    return `| ${[fault, promised, ...shown].map(escaped).join(' | ')} |`
  })
  return [`### ${title}`, '', `| ${heads.join(' | ')} |`, `|${'---|'.repeat(heads.length)}`, ...lines].join('\n')
}
