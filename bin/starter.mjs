// Stops the gateway when the process that started it is gone. npm forwards SIGTERM to its shell
// only, and a killed launcher forwards nothing: the gateway would keep running, unknown to any
// supervisor.
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { basename } from 'node:path'

const everyMs = 500

/** `launcher`: the process of an older Node that started this one. `onGone` is called once. */
export function watchStarter(launcher, onGone) {
  const parent = launcher ?? process.ppid
  const npm = launcher === undefined ? npmAbove(parent) : parent
  if (npm === undefined) return
  const timer = setInterval(() => {
    if (process.ppid === parent && isThere(npm)) return
    clearInterval(timer)
    onGone()
  }, everyMs)
  timer.unref()
}

/** npm is the parent, or the parent of its shell. Further up it started another program. */
function npmAbove(parent) {
  if (process.env.npm_lifecycle_event === undefined) return undefined
  const shell = look(parent)
  if (!shell || isNpm(shell)) return shell?.pid
  const above = look(shell.parent)
  return above && isNpm(above) ? above.pid : undefined
}

const isNpm = ({ words }) => words.slice(0, 2).some((word) => /^(npm|npx|pnpm|pnpx|yarn)\b/.test(basename(word)))

/** Undefined if unknown. */
function look(pid) {
  try {
    if (process.platform === 'linux') {
      const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split(/[\0 ]/)
      const [, parent] = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1).split(' ')
      return { pid, parent: Number(parent), words }
    }
    const [parent, ...words] = execFileSync('ps', ['-o', 'ppid=,args=', '-p', String(pid)], { encoding: 'utf8' })
      .trim()
      .split(/\s+/)
    return { pid, parent: Number(parent), words }
  } catch {
    return undefined
  }
}

function isThere(pid) {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return error.code === 'EPERM'
  }
}
