// Histories in several processes at once: most of the time of a history is a wait, for a store that is silent or a try that comes later.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'

export type AtOnceOptions = {
  readonly processes: number
  readonly histories: number
  readonly seed: number
  readonly isKilled: boolean
}

/** Each process has a seed of its own. Resolves to whether all histories passed; what a process says of one that failed is printed. */
export async function runAtOnce({ processes, histories, seed, isKilled }: AtOnceOptions): Promise<boolean> {
  const passed = new Map<number, number>()
  let told = 0
  const run = async (index: number): Promise<boolean> => {
    const share = Math.floor((histories + index) / processes)
    if (share === 0) return true
    const args = ['--histories', String(share), '--seed', String(seed + index), ...(isKilled ? ['--kill'] : [])]
    const child = spawn(process.execPath, [process.argv[1] ?? '', ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
    for await (const line of createInterface({ input: child.stdout })) {
      const count = /^(\d+) passed$/.exec(line)?.[1]
      if (count === undefined) continue
      passed.set(index, Number(count))
      const sum = [...passed.values()].reduce((all, one) => all + one, 0)
      if (sum < told + 100) continue
      told = sum
      console.log(`${sum} passed`)
    }
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
    if (child.exitCode !== 0)
      console.error(`histories of seed ${seed + index} ended with ${child.exitCode ?? child.signalCode}`)
    return child.exitCode === 0
  }
  const ended = await Promise.all(Array.from({ length: processes }, (_, index) => run(index)))
  return ended.every(Boolean)
}
