// Clients of the rows of bombs.ts: two that read one thing again and again, each in its own way, and many that wait for nothing.
import { Agent, get, type IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { inParallel, percentile } from '../../../support/gateway.ts'
import { type Cell, inMs } from '../rows.ts'

export type Target = { readonly url: string; readonly roots: readonly string[] }
export type Attack = (target: Target) => Promise<Cell>

/** `cut`: by the gateway. `left`: by the client, in the middle. */
type Outcome = number | 'complete' | 'cut' | 'left'

type Reading = {
  readonly query?: string
  readonly accept?: string
  readonly how?: 'as fast as it can' | 'slowly' | 'leaves'
  /** Once and not again: the second time the gateway knows what it is. */
  readonly isOnce?: boolean
  readonly lastsMs?: number
  /** The first one comes at least once. */
  readonly right: readonly [Outcome, ...Outcome[]]
}

const clients = 2
const leavesAfter = 4 * 1024 * 1024
// A line of a few megabytes a second.
const [slowBytes, slowMs] = [64 * 1024, 20]

function leaveAt(response: IncomingMessage, leave: () => void): void {
  let bytes = 0
  response.on('data', (piece: Buffer) => {
    bytes += piece.byteLength
    if (bytes >= leavesAfter) leave()
  })
}

async function readSlowly(response: IncomingMessage): Promise<void> {
  for (;;) {
    if (response.read(slowBytes) === null && response.readableEnded) return
    if (response.destroyed) return
    if (response.readableLength < slowBytes) response.read()
    await sleep(slowMs)
  }
}

type Read = { readonly outcome: Outcome; readonly bytes: number }

function read(url: string, { how, accept = '*/*' }: Reading, endsAt: number): Promise<Read> {
  return new Promise((resolve) => {
    let hasLeft = false
    let outcome: Outcome = 'cut'
    let socket: Socket | undefined
    const request = get(url, { agent: false, headers: { accept } }, (response) => {
      const { statusCode = 0 } = response
      socket = response.socket
      if (how === 'slowly') void readSlowly(response)
      else if (how === 'leaves') leaveAt(response, leave)
      else response.resume()
      response.on('error', () => {})
      response.on('end', () => {
        if (response.complete) outcome = statusCode === 200 ? 'complete' : statusCode
      })
    })
    const leave = () => {
      hasLeft = true
      request.destroy()
    }
    const timer = setTimeout(leave, Math.max(0, endsAt - performance.now()))
    request.on('error', () => {})
    request.on('close', () => {
      clearTimeout(timer)
      resolve({ outcome: outcome === 'cut' && hasLeft ? 'left' : outcome, bytes: socket?.bytesRead ?? 0 })
    })
  })
}

/** Two clients. What is under way at the end they leave. */
export const reading =
  (how: Reading): Attack =>
  async ({ url, roots }) => {
    const { query = '', isOnce = false, lastsMs = 8000, right } = how
    const endsAt = performance.now() + lastsMs
    const answers: Read[] = []
    const client = async (first: number) => {
      for (let at = first; performance.now() < endsAt && (!isOnce || at < roots.length); at += clients)
        answers.push(await read(`${url}/ipfs/${roots[at % roots.length]}${query}`, how, endsAt))
    }
    await Promise.all(Array.from({ length: clients }, (_, first) => client(first)))
    const counts = new Map<Outcome, number>()
    for (const { outcome } of answers) counts.set(outcome, (counts.get(outcome) ?? 0) + 1)
    const mib = answers.reduce((sum, { bytes }) => sum + bytes, 0) / 1024 / 1024
    const wrong = [...counts.keys()].filter((outcome) => !right.includes(outcome))
    const broken = wrong.map((outcome) => `${counts.get(outcome)} of ${answers.length} ${outcome}`)
    if (!counts.has(right[0])) broken.push(`none was ${right[0]}`)
    const told = [...counts].map(([outcome, count]) => `${count} ${outcome}`)
    return { measured: `${told.join(', ')}; ${Math.round(mib)} MiB`, broken }
  }

/** A client for each, over connections that are open before: all ask in one moment, and nobody has what they want. */
export const waitingInVain =
  ({ deadlineMs, maxBehindMs }: { readonly deadlineMs: number; readonly maxBehindMs: number }): Attack =>
  async ({ url, roots }) => {
    const agents = roots.map(() => new Agent({ keepAlive: true }))
    const ask = (path: string, agent: Agent | undefined) =>
      new Promise<{ readonly status: number; readonly ms: number }>((resolve) => {
        const began = performance.now()
        const told = (status: number) => resolve({ status, ms: performance.now() - began })
        const request = get(url + path, { ...(agent && { agent }) }, (response) => {
          response.resume()
          response.on('error', () => told(0))
          response.on('end', () => told(response.statusCode ?? 0))
        })
        request.on('error', () => told(0))
      })
    try {
      // Answered without a block. Fifty at a time: to open them all at once is another attack.
      await inParallel(agents, 50, (agent) => ask('/ipfs/bafkqaaa', agent))
      const answers = await Promise.all(roots.map((root, at) => ask(`/ipfs/${root}`, agents[at])))
      const counts = new Map<number, number>()
      for (const { status } of answers) counts.set(status, (counts.get(status) ?? 0) + 1)
      const wrong = [...counts.keys()].filter((status) => status !== 404 && status !== 503)
      const behind = answers.map(({ ms }) => ms - deadlineMs)
      const worst = percentile(behind, 1)
      return {
        measured: `${[...counts].map(([status, count]) => `${count} ${status}`).join(', ')}, half of them ${inMs(percentile(behind, 0.5))} behind their deadline of ${inMs(deadlineMs)}, the last one ${inMs(worst)}`,
        broken: [
          ...wrong.map((status) => `${counts.get(status)} were ${status}`),
          ...(worst > maxBehindMs ? [`answered ${inMs(worst)} behind the deadline`] : []),
        ],
      }
    } finally {
      for (const agent of agents) agent.destroy()
    }
  }
