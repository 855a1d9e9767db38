// How a history asks: an answer that is whole, or none; and once more where a store that was away is to be used again within seconds.
import { get as httpGet, request as httpRequest, type IncomingHttpHeaders } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Must } from './oracle.ts'

export type Answer = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: Buffer }

/** What was mended is used again within 5 s; this is ten times that, on a machine that is busy with more than this. */
const mendedMs = 50_000

/** Undefined: cut, or given up. What need not be there is not waited for to the deadline. */
export async function ask(url: string, headers: Record<string, string>, must: Must): Promise<Answer | undefined> {
  const until = performance.now() + mendedMs
  for (;;) {
    const got = await askOnce(url, headers, must !== 'no')
    const isAway = got === undefined || got.status === 503 || got.status === 504
    if (must !== 'soon' || !isAway || performance.now() > until) return got
    await sleep(50)
  }
}

function askOnce(url: string, headers: Record<string, string>, isPatient: boolean): Promise<Answer | undefined> {
  return new Promise((resolve) => {
    const signal = isPatient ? undefined : AbortSignal.timeout(50)
    const request = httpGet(url, { agent: false, headers, ...(signal && { signal }) }, (response) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', () => resolve(undefined))
      response.on('end', () => {
        const { statusCode: status = 0, headers: got, complete } = response
        resolve(complete ? { status, headers: got, body: Buffer.concat(pieces) } : undefined)
      })
    })
    request.on('error', () => resolve(undefined))
  })
}

export type Told = { readonly status: number; readonly json: Record<string, unknown> }

/** The admin address. Undefined: it was cut. */
export function tell(method: 'GET' | 'POST' | 'DELETE', url: string): Promise<Told | undefined> {
  return new Promise((resolve) => {
    const request = httpRequest(url, { method, agent: false }, (response) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', () => resolve(undefined))
      response.on('end', () => {
        const text = Buffer.concat(pieces).toString()
        const json = response.complete && text.startsWith('{') ? (JSON.parse(text) as Told['json']) : {}
        resolve(response.complete ? { status: response.statusCode ?? 0, json } : undefined)
      })
    })
    request.on('error', () => resolve(undefined))
    request.end()
  })
}
