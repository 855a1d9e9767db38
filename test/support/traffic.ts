// Requests at a steady rate, whether or not those before have been answered: what clients do to a gateway that is slow.
import { Agent } from 'node:http'
import { type Fetched, fetchAll } from './gateway.ts'

// No line of our own: what is asked at once arrives at once.
const crowd = new Agent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY })

export type Outcome = {
  /** Milliseconds after the beginning at which it was asked. */
  readonly at: number
  /** 0: no whole answer. */
  readonly status: number
  readonly ms: number
  readonly answer: Fetched | undefined
}

export async function ask(url: string, at = 0): Promise<Outcome> {
  const began = performance.now()
  const answer = await fetchAll(url, {}, crowd).catch(() => undefined)
  return { at, status: answer?.status ?? 0, ms: performance.now() - began, answer }
}

/** `next` names the address of each request; it is asked for `perSecond` of them, for `ms`. All have ended then. */
export async function steadily(perSecond: number, ms: number, next: () => string): Promise<Outcome[]> {
  const began = performance.now()
  const asking: Promise<Outcome>[] = []
  for (let at = 0; at < ms; at += 1000 / perSecond) {
    const waitMs = began + at - performance.now()
    if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs))
    asking.push(ask(next(), at))
  }
  return Promise.all(asking)
}

/** How often each status was had, as `200: 3, 503: 1`. */
export function statusesOf(outcomes: readonly Outcome[]): string {
  const counts = new Map<number, number>()
  for (const { status } of outcomes) counts.set(status, (counts.get(status) ?? 0) + 1)
  return [...counts].map(([status, count]) => `${status}: ${count}`).join(', ')
}
