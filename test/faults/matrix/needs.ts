// What a row needs of the machine beside Node. A row whose needs are not met is skipped by its name, with the reason, in what the run
// prints and in its table: it is neither a promise kept nor one broken.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import type { Row } from './rows.ts'

const run = promisify(execFile)

/** `mount`: a file system that only one process sees, for which Linux wants root or namespaces of users. */
export type Need = 'linux' | 'mount' | 'nsenter' | 'prlimit'

const probes: Readonly<Record<Exclude<Need, 'linux'>, readonly [program: string, ...args: string[]]>> = {
  mount: ['unshare', '-Urm', 'sh', '-c', 'mount -t tmpfs -o size=1m none /mnt'],
  nsenter: ['nsenter', '--version'],
  prlimit: ['prlimit', '--version'],
}

const found = new Map<Need, Promise<string | undefined>>()

async function look(need: Need): Promise<string | undefined> {
  if (need === 'linux')
    return process.platform === 'linux' ? undefined : `it needs Linux, and this is ${process.platform}`
  const [program, ...args] = probes[need]
  try {
    await run(program, args, { timeout: 10_000 })
    return undefined
  } catch (error) {
    const { code, stderr } = error as { code?: unknown; stderr?: string }
    if (code === 'ENOENT') return `it needs \`${program}\`, which is not installed`
    const said = stderr?.trim().split('\n').at(-1) || `it ended with ${String(code)}`
    return `it needs \`${[program, ...args].join(' ')}\`, and that failed: ${said}`
  }
}

/** Why this machine cannot make the row; undefined: it can. Each need is looked for once. */
export async function missing(
  needs: readonly Need[],
  by: (need: Need) => Promise<string | undefined> = look,
): Promise<string | undefined> {
  for (const need of needs) {
    const looking = found.get(need) ?? by(need)
    if (by === look) found.set(need, looking)
    const reason = await looking
    if (reason !== undefined) return reason
  }
  return undefined
}

/** Its cells say nothing: what was not measured is not shown as if it were. */
export const skippedRow = (fault: string, reason: string, columns: readonly string[]): Row => ({
  fault,
  promised: '',
  skipped: reason,
  cells: columns.map(() => ({ measured: '', broken: [] })),
})
