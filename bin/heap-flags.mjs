// Replaces this process by the gateway with options that V8 and glibc read only when a process
// starts: a bound on young memory, which otherwise grows to 64 MiB under load and never shrinks; a
// heap large enough not to be marked for every few blocks; no more helper threads than spare cores;
// and memory that is returned to the system.
import { accessSync, constants } from 'node:fs'
import { availableParallelism } from 'node:os'

// V8's four helpers mark the heap in parallel: on a single core the event loop would get a fifth of
// the time.
const maxHelpers = 4
const flagsFor = (cores) => ({
  '--max-semi-space-size': 8,
  '--initial-heap-size': 96,
  '--v8-pool-size': Math.min(maxHelpers, Math.max(1, cores - 1)),
})
// Without them glibc retains the memory of large files, in pieces, for as long as the process runs.
const malloc = { MALLOC_ARENA_MAX: '2', MALLOC_TRIM_THRESHOLD_: '1048576' }
// These need almost no heap.
const words = new Set(['-h', '--help', '-v', '--version'])

/** Undefined means not to replace this process. */
export function withHeapFlags({ platform, execArgv, argv, env }, cores = availableParallelism()) {
  const [node, bin, command = 'serve', ...others] = argv
  const isServe = command === 'serve' || command.startsWith('-')
  if (platform === 'win32' || !isServe || [command, ...others].some((one) => words.has(one))) return undefined
  const set = [...execArgv, env.NODE_OPTIONS ?? ''].join(' ').replaceAll('_', '-')
  const missing = Object.entries(flagsFor(cores)).filter(([flag]) => !set.includes(flag))
  if (missing.length === 0) return undefined
  return [node, ...missing.map(([flag, value]) => `${flag}=${value}`), ...execArgv, bin, ...argv.slice(2)]
}

/** If the system does not permit it, the gateway runs without. */
export function takeHeapFlags() {
  const args = withHeapFlags(process)
  if (!args || !process.execve) return
  try {
    accessSync(process.execPath, constants.X_OK) // a call that fails would end the process
    process.execve(process.execPath, args, { ...malloc, ...process.env })
  } catch {}
}
