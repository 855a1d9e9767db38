// So many at a time; the others wait in line, or leave it.

export interface Slots {
  run<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>
}

export function createSlots(most: number): Slots {
  const line: (() => void)[] = []
  let taken = 0

  function enter(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const go = () => {
        signal.removeEventListener('abort', leave)
        taken++
        resolve()
      }
      const leave = () => {
        line.splice(line.indexOf(go), 1)
        reject(signal.reason)
      }
      if (signal.aborted) return reject(signal.reason)
      if (taken < most) return go()
      line.push(go)
      signal.addEventListener('abort', leave, { once: true })
    })
  }

  return {
    async run(work, signal) {
      await enter(signal)
      try {
        return await work()
      } finally {
        taken--
        line.shift()?.()
      }
    },
  }
}
