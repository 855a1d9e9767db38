// Starts the gateway again, in the place of this process, with what V8 and the C library take only when a process starts: a bound
// on young memory, which otherwise grows to 64 MiB and more under load and never shrinks, a heap that is large enough not to be
// marked for each few blocks that come, no more helpers than have a core beside the loop, and memory that goes back to the system.
import { accessSync, constants } from 'node:fs'
import { availableParallelism } from 'node:os'

// V8 has four helpers by default, which mark the heap while the loop goes on: on a core of its own it would have a fifth of the time.
const maxHelpers = 4
const flagsFor = (cores) => ({
  '--max-semi-space-size': 8,
  '--initial-heap-size': 96,
  '--v8-pool-size': Math.min(maxHelpers, Math.max(1, cores - 1)),
})
// Read by glibc when a process starts: without them it keeps what large files took, in pieces, for as long as it runs.
const malloc = { MALLOC_ARENA_MAX: '2', MALLOC_TRIM_THRESHOLD_: '1048576' }
// Answered at once: there is no heap to speak of.
const words = new Set(['-h', '--help', '-v', '--version'])

/** Undefined: this process is not to be replaced. */
export function withHeapFlags({ platform, execArgv, argv, env }, cores = availableParallelism()) {
  const [node, bin, command = 'serve', ...others] = argv
  const isServe = command === 'serve' || command.startsWith('-')
  if (platform === 'win32' || !isServe || [command, ...others].some((one) => words.has(one))) return undefined
  const set = [...execArgv, env.NODE_OPTIONS ?? ''].join(' ').replaceAll('_', '-')
  const missing = Object.entries(flagsFor(cores)).filter(([flag]) => !set.includes(flag))
  if (missing.length === 0) return undefined
  return [node, ...missing.map(([flag, value]) => `${flag}=${value}`), ...execArgv, bin, ...argv.slice(2)]
}

/** Where the system does not let it, the gateway runs without. */
export function takeHeapFlags() {
  const args = withHeapFlags(process)
  if (!args || !process.execve) return
  try {
    accessSync(process.execPath, constants.X_OK) // a call that fails would end the process
    process.execve(process.execPath, args, { ...malloc, ...process.env })
  } catch {}
}
