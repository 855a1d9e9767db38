// For the soak and the fault matrix: the gateway as an operator runs it, and what the system says about its process.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { readdir, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

const cli = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
const launcher = fileURLToPath(new URL('../../bin/cidgate.mjs', import.meta.url))

export type GatewayProcess = {
  readonly url: string
  /** Undefined: it has no admin address. */
  readonly admin: string | undefined
  readonly pid: number
  /** Of its further processes. */
  workers(): number[]
  /** Undefined while it runs. */
  readonly ended: string | undefined
  reload(): void
  signal(name: NodeJS.Signals): void
  /** The end of the process: its code, or its signal. */
  readonly stopping: Promise<unknown>
  /** The end of what it wrote to standard error; nothing of one that is not mute. */
  errors(): string
  /** Nothing reads what it says from now on. */
  leaveOutput(): void
  stop(): Promise<void>
  /** Of all its processes. */
  residentMiB(): number
  handles(): number
}

const maxErrors = 64 * 1024

export type StartOptions = {
  /** A program that becomes the gateway, such as `prlimit`. */
  readonly under?: readonly string[]
  readonly isMute?: boolean
  /** As users start it, with the launcher's bounds of memory. */
  readonly isLaunched?: boolean
  /** Beside the variables of this process. */
  readonly env?: Readonly<Record<string, string>>
}

export async function startGateway(
  folder: string,
  config: object,
  flags: readonly string[] = [],
  { under = [], isMute = false, isLaunched = false, env = {} }: StartOptions = {},
): Promise<GatewayProcess> {
  const file = join(folder, 'config.json')
  await writeFile(file, JSON.stringify(config))
  const [program = '', ...rest] = [
    ...under,
    process.execPath,
    ...flags,
    isLaunched ? launcher : cli,
    'serve',
    '--config',
    file,
  ]
  const child: ChildProcess = spawn(program, rest, {
    stdio: ['ignore', 'pipe', isMute ? 'pipe' : 'inherit'],
    env: { ...process.env, ...env },
  })
  let errors = ''
  child.stderr?.on('data', (piece: Buffer) => {
    errors = (errors + piece).slice(-maxErrors)
  })
  if (!child.stdout) throw new Error('the gateway has no output')
  const stopping = once(child, 'exit')
  let ended: string | undefined
  void stopping.then(([code, signal]) => {
    ended = `exit code ${code}, signal ${signal}`
  })
  const [line] = (await Promise.race([once(createInterface({ input: child.stdout }), 'line'), stopping])) as [string]
  const url = /http:\/\/[^\s/]+/.exec(String(line))?.[0]
  if (url === undefined) throw new Error(`the gateway did not start, its words are above: ${line}`)
  const workers = (): number[] => {
    const children = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8')
    return children.split(' ').filter(Boolean).map(Number)
  }
  const residentMiB = (pid: number): number => {
    try {
      return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) / 1024
    } catch {
      return 0
    }
  }
  return {
    url,
    admin: /admin: (http:\/\/[^\s/)]+)/.exec(String(line))?.[1],
    pid: child.pid ?? 0,
    get ended() {
      return ended
    },
    reload: () => void child.kill('SIGHUP'),
    signal: (name) => void child.kill(name),
    stopping,
    errors: () => errors,
    leaveOutput() {
      child.stdout?.destroy()
      child.stderr?.destroy()
    },
    async stop() {
      if (ended === undefined) child.kill('SIGTERM')
      await stopping
    },
    workers,
    residentMiB: () => [child.pid ?? 0, ...workers()].reduce((sum, pid) => sum + residentMiB(pid), 0),
    handles: () => readdirSync(`/proc/${child.pid}/fd`).length,
  }
}

export async function bytesBelow(folder: string): Promise<number> {
  let sum = 0
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    if (entry.isFile())
      sum += await stat(join(entry.parentPath, entry.name)).then(
        ({ size }) => size,
        () => 0,
      )
  }
  return sum
}
