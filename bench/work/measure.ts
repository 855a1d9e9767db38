// Measures a row: all contenders in alternation, by work per second of the server's processor time,
// which other load on the machine hardly affects. The first round warms up.
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { start } from './child.ts'
import type { Done, Load } from './client.ts'
import type { Contender, Row, Scale } from './rows.ts'
import { pinned, tempFolder } from './servers.ts'

export type Figure = {
  readonly name: string
  /**
   * Units per processor second of the server, or per second in a row by the clock: the median of
   * the rounds, and all of them.
   */
  readonly work: number
  readonly rounds: readonly number[]
  readonly perSecond: number
  readonly residentBytes: number
  /** The maximum of all rounds. */
  readonly peakBytes: number
  /**
   * The gateway's work relative to this contender; in a row by the clock its time. Undefined for
   * the gateway itself.
   */
  readonly ratio?: number
}

export type Measured = { readonly row: Row; readonly figures: readonly Figure[]; readonly missing: readonly string[] }

const client = fileURLToPath(new URL('client.ts', import.meta.url))
const mib = 1024 * 1024

export async function measure(row: Row, full: Scale): Promise<Measured> {
  const scale = { ...full, rounds: Math.min(full.rounds, row.maxRounds ?? full.rounds) }
  const { contenders, others } = await row.setUp(scale)
  const folder = await tempFolder()
  try {
    const samples = new Map<string, { cpu: number; wall: number; resident: number; peak: number }[]>()
    for (let round = 0; round <= scale.rounds; round++) {
      // The order alternates, so that a machine that slows down favours no server.
      const order = round % 2 === 0 ? contenders : [...contenders].reverse()
      for (const contender of order) {
        const sample = await once(contender, round, row, folder)
        if (round > 0) samples.set(contender.name, [...(samples.get(contender.name) ?? []), sample])
      }
    }
    const workOf = ({ cpu, wall }: { cpu: number; wall: number }) => (row.isByClock ? wall : cpu)
    const own = (samples.get('cidgate') ?? []).map(workOf)
    const shareOf = (work: number, round: number): number =>
      row.isByClock ? work / (own[round] ?? 0) : (own[round] ?? 0) / work
    const figures = [...samples].map(([name, all]) => ({
      name,
      work: median(all.map(workOf)),
      rounds: all.map(workOf),
      perSecond: median(all.map(({ wall }) => wall)),
      residentBytes: Math.max(...all.map(({ resident }) => resident)),
      peakBytes: Math.max(...all.map(({ peak }) => peak)),
      ...(name !== 'cidgate' && { ratio: median(all.map(workOf).map(shareOf)) }),
    }))
    return { row, figures, missing: Object.keys(row.aims).filter((name) => !samples.has(name)) }
  } finally {
    for (const { stop } of [...contenders.map(({ server }) => server), ...others]) await stop()
    await rm(folder, { recursive: true, force: true })
  }
}

/** One round of one contender. */
export async function once({ name, server, load, before }: Contender, round: number, row: Row, folder: string) {
  await before?.(round)
  const file = join(folder, `${name}-${round}.json`)
  const asked: Load = { url: server.url, ...load(round) }
  await writeFile(file, JSON.stringify(asked))
  const cpu = server.cpuSeconds()
  server.peak()
  const child = start(...pinned(1, process.execPath, [client, file]))
  const done = JSON.parse(await child.line) as Done
  const used = server.cpuSeconds() - cpu
  const wrong = Object.keys(done.statuses).filter((status) => !['200', '206', '304'].includes(status))
  if (wrong.length > 0 || done.broken > 0)
    throw new Error(`${row.id}, ${name}: ${JSON.stringify(done.statuses)}, ${done.broken} connections broke`)
  const sent = asked.requests.some(({ bodyFile }) => bodyFile !== undefined)
  const mibs = sent ? done.answers * 64 : done.bytes / mib
  const units = row.unit === 'MiB' ? mibs : done.answers
  return { cpu: units / used, wall: units / done.seconds, resident: server.resident(), peak: server.peak() }
}

export const isMissed = ({ isByClock, aims }: Row, { name, ratio }: Pick<Figure, 'name' | 'ratio'>): boolean => {
  const aim = aims[name]
  return ratio !== undefined && aim !== undefined && (isByClock ? ratio > aim : ratio < aim)
}

export const median = (values: readonly number[]): number =>
  [...values].sort((one, other) => one - other)[values.length >> 1] ?? 0
