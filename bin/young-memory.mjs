// Starts the gateway again, in the place of this process, with a bound on V8's young memory. Without it that memory grows to 64 MiB
// and more under load, and never shrinks; V8 takes such a bound only when a process starts.
import { accessSync, constants } from 'node:fs'

const flag = '--max-semi-space-size'
const mib = 16
// Answered at once: there is nothing to bound.
const words = new Set(['-h', '--help', '-v', '--version'])

/** Undefined: this process is not to be replaced. */
export function boundedArguments({ platform, execArgv, argv, env }) {
  const [, , command = 'serve', ...others] = argv
  const isSet = [...execArgv, env.NODE_OPTIONS ?? ''].some((one) => one.replaceAll('_', '-').includes(flag))
  const isServe = command === 'serve' || command.startsWith('-')
  const isWord = [command, ...others].some((one) => words.has(one))
  if (platform === 'win32' || isSet || !isServe || isWord) return undefined
  return [argv[0], `${flag}=${mib}`, ...execArgv, ...argv.slice(1)]
}

/** Where the system does not let it, the gateway runs without. */
export function boundYoungMemory() {
  const args = boundedArguments(process)
  if (!args || !process.execve) return
  try {
    accessSync(process.execPath, constants.X_OK) // a call that fails would end the process
    process.execve(process.execPath, args, process.env)
  } catch {}
}
