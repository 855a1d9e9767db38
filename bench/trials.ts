// Benches that are programs of their own, because they measure other things than work per processor
// second.
import { spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

export type Trial = {
  readonly id: string
  readonly what: string
  readonly script: string
  /** The environment of a short run. */
  readonly quick: Readonly<Record<string, string>>
}

export const trials: readonly Trial[] = [
  {
    id: 'tail',
    what: 'the slowest of a hundred answers over five upstreams',
    script: 'tail.ts',
    quick: { BENCH_FILES: '100' },
  },
  {
    id: 'conns',
    what: 'hot answers beside 10,000 idle and 1,000 slow clients',
    script: 'conns.ts',
    quick: { BENCH_ROUNDS: '1' },
  },
  {
    id: 'crowd',
    what: '256 kept connections that ask without a pause, and 2,000 that connect at once',
    script: 'crowd.ts',
    quick: { BENCH_ROUNDS: '1', BENCH_SECONDS: '3' },
  },
  {
    id: 'parts',
    what: 'our files and functions, and what waits, of one cold block, one upload, one hot answer',
    script: 'parts.ts',
    quick: { BENCH_COUNTED: '300', BENCH_WARM: '300' },
  },
  {
    id: 'hit-ratio',
    what: 'what a cache answers of what readers ask, alone and beside a crawler',
    script: 'hit-ratio.ts',
    quick: { BENCH_REQUESTS: '10000' },
  },
  {
    id: 'cores',
    what: 'several processes of one gateway (`workers`) against one',
    script: 'cores.ts',
    quick: { BENCH_ROUNDS: '2', BENCH_SECONDS: '1' },
  },
]

/**
 * Runs it and forwards its output. Resolves with the lines; the last one reports an exit code other
 * than 0.
 */
export async function runTrial({ script, quick }: Trial, isQuick: boolean): Promise<string[]> {
  const child = spawn(process.execPath, [fileURLToPath(new URL(script, import.meta.url))], {
    env: { ...process.env, ...(isQuick && quick) },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
  const lines: string[] = []
  for await (const line of createInterface({ input: child.stdout })) {
    lines.push(line)
    process.stdout.write(`${line}\n`)
  }
  const code = await ended
  if (code !== 0) lines.push(`(ended with ${code})`)
  return lines
}
