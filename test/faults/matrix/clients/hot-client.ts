// In a thread of its own: a client of a hot file, one request behind the other. It says when it has begun, and, when it is told to
// stop, how long each answer took.
import { Agent, get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { parentPort, workerData } from 'node:worker_threads'

export type HotTold = { readonly times: readonly number[]; readonly refused: number }

const agent = new Agent({ keepAlive: true })
const times: number[] = []
let refused = 0
let isOver = false
parentPort?.on('message', () => {
  isOver = true
})

const ask = (): Promise<number> =>
  new Promise((resolve) => {
    const request = get(String(workerData), { agent }, (response) => {
      response.resume()
      response.on('error', () => resolve(0))
      response.on('end', () => resolve(response.statusCode ?? 0))
    })
    request.on('error', () => resolve(0))
  })

await ask()
parentPort?.postMessage('begun')
while (!isOver) {
  const began = performance.now()
  if ((await ask()) !== 200) refused++
  times.push(performance.now() - began)
  await sleep(5)
}
parentPort?.postMessage({ times, refused } satisfies HotTold)
parentPort?.close()
agent.destroy()
