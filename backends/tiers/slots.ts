// So many at once, the others wait their turn; whoever gives up leaves the queue.

export type Slots = <T>(work: () => Promise<T>, signal?: AbortSignal) => Promise<T>

export function createSlots(most: number): Slots {
  let free = most
  const waiting: (() => void)[] = []
  const turn = (signal: AbortSignal | undefined): Promise<void> =>
    new Promise((resolve, reject) => {
      const go = () => {
        signal?.removeEventListener('abort', leave)
        resolve()
      }
      const leave = () => {
        waiting.splice(waiting.indexOf(go), 1)
        reject(signal?.reason)
      }
      waiting.push(go)
      signal?.addEventListener('abort', leave, { once: true })
    })
  return async (work, signal) => {
    signal?.throwIfAborted()
    if (free > 0) free--
    else await turn(signal)
    try {
      return await work()
    } finally {
      const next = waiting.shift()
      if (next) next()
      else free++
    }
  }
}
