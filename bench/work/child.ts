// A process of the bench: started, measured, and stopped together with its children.
import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

export type Child = {
  readonly pid: number
  /** The first line on its standard output. */
  readonly line: Promise<string>
  /** Processor seconds so far, including children. */
  cpuSeconds(): number
  /** The same for each process. */
  cpuOfEach(): ReadonlyMap<number, number>
  /** Resident bytes, including children; a shared page is divided among its processes (PSS). */
  resident(): number
  /** The peak of resident bytes since the last call, including children. */
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
      const exited = new Promise((resolve) => child.once('exit', resolve))
      child.kill('SIGTERM')
      const timer = setTimeout(() => child.kill('SIGKILL'), 10_000)
      await exited
      clearTimeout(timer)
    },
  }
}

/** The usage of a process and its children. */
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

/** The process and its descendants. */
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

/** Writing 5 resets the kernel's peak. */
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
