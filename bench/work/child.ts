// A process of the bench: started, asked for what it has used, and stopped, with everything that it started itself.
import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

export type Child = {
  readonly pid: number
  /** The first line on its standard output. */
  readonly line: Promise<string>
  /** Processor seconds so far, of it and of its children. */
  cpuSeconds(): number
  /** The same of each of them by itself. */
  cpuOfEach(): ReadonlyMap<number, number>
  /** Resident bytes, of it and of its children: each page that several processes share is divided among them (PSS). */
  resident(): number
  /** The most that was resident since the last look, of it and of its children. */
  peak(): number
  stop(): Promise<void>
}

const ticksPerSecond = 100

export function start(command: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): Child {
  const child = spawn(command, args, { env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'inherit'] })
  const line = firstLine(child, command)
  line.catch(() => {})
  const pid = child.pid ?? 0
  return {
    pid,
    line,
    ...usageOf(pid),
    async stop() {
      if (child.exitCode !== null || child.signalCode !== null) return
      const gone = new Promise((resolve) => child.once('exit', resolve))
      child.kill('SIGTERM')
      const timer = setTimeout(() => child.kill('SIGKILL'), 10_000)
      await gone
      clearTimeout(timer)
    },
  }
}

/** What a process and its children have used and hold. */
export const usageOf = (pid: number): Pick<Child, 'cpuSeconds' | 'cpuOfEach' | 'resident' | 'peak'> => ({
  cpuSeconds: () => sum(pid, ticksOf) / ticksPerSecond,
  cpuOfEach: () => new Map(family(pid).map((one) => [one, (quietly(() => ticksOf(one)) ?? 0) / ticksPerSecond])),
  resident: () => sum(pid, bytesOf),
  peak: () => sum(pid, takePeakOf),
})

function firstLine(child: ChildProcess, command: string): Promise<string> {
  return new Promise((resolve, reject) => {
    if (!child.stdout) return reject(new Error('no output'))
    createInterface({ input: child.stdout }).once('line', resolve)
    child.once('error', reject)
    child.once('exit', (code) => reject(new Error(`${command} ended with ${code}`)))
  })
}

/** The process and all below it. */
function family(pid: number): number[] {
  const children = quietly(() => readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8')) ?? ''
  const below = children.split(' ').filter((one) => one.trim() !== '')
  return [pid, ...below.flatMap((child) => family(Number(child)))]
}

const sum = (pid: number, read: (pid: number) => number): number =>
  family(pid).reduce((total, one) => total + (quietly(() => read(one)) ?? 0), 0)

function ticksOf(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return Number(fields[11]) + Number(fields[12])
}

const bytesOf = (pid: number): number =>
  Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))?.[1]) * 1024

/** The kernel begins anew behind each look: 5 says so. */
function takePeakOf(pid: number): number {
  const kib = Number(/^VmHWM:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
  quietly(() => writeFileSync(`/proc/${pid}/clear_refs`, '5'))
  return kib * 1024
}

function quietly<T>(read: () => T): T | undefined {
  try {
    return read()
  } catch {
    return undefined
  }
}
