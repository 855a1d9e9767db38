// For the demo: clients that read what many want, what few want and what nobody has, and upload a little.
import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { Agent, FormData, request } from 'undici'

export type Tally = {
  readonly statuses: Map<number, number>
  /** By what `Cache-Status` says: a tier, or an upstream. */
  readonly sources: Map<string, number>
  readonly millis: number[]
  uploads: number
}

export interface Load {
  /** What happened since the last call. */
  take(): Tally
  stop(): Promise<void>
}

const perSecond = 25
const popular = 30

/** `paths` may change meanwhile; the last ones are the popular ones. */
export function startLoad(url: string, paths: readonly string[]): Load {
  const agent = new Agent({ headersTimeout: 30_000, bodyTimeout: 30_000 })
  const stopping = new AbortController()
  const running = new Set<Promise<void>>()
  let tally = emptyTally()
  let number = 0

  const someOf = (newest: number): string => paths.at(-1 - Math.floor(Math.random() * newest)) ?? ''

  async function read(path: string): Promise<void> {
    const began = performance.now()
    const { statusCode, headers, body } = await request(url + path, { dispatcher: agent, signal: stopping.signal })
    await body.dump({ limit: 10_000_000 })
    tally.millis.push(performance.now() - began)
    count(tally.statuses, statusCode)
    if (statusCode === 200) count(tally.sources, sourceOf(String(headers['cache-status'])))
  }

  async function upload(): Promise<void> {
    const form = new FormData()
    const evidence = { name: `Upload ${number}`, at: new Date().toISOString() }
    form.append('data', new Blob([`${JSON.stringify(evidence)}\n`]), 'evidence.json')
    const sent = { method: 'POST', body: form, dispatcher: agent, signal: stopping.signal } as const
    const { statusCode, body } = await request(`${url}/add`, sent)
    const { cids } = (await body.json()) as { cids?: string[] }
    count(tally.statuses, statusCode)
    if (!cids?.[0]) return
    tally.uploads++
    await read(cids[0])
  }

  /** Now and then a CID that nobody has. */
  function next(): Promise<void> {
    number++
    if (number % 60 === 0) return upload()
    if (number % 100 === 0) return read(`/ipfs/${absent(number)}`)
    return read(someOf(number % 3 === 0 ? paths.length : popular))
  }

  async function run(): Promise<void> {
    while (!stopping.signal.aborted) {
      const one: Promise<void> = next()
        .catch(() => {
          if (!stopping.signal.aborted) count(tally.statuses, 0)
        })
        .finally(() => running.delete(one))
      running.add(one)
      await sleep(1000 / perSecond, undefined, { signal: stopping.signal }).catch(() => {})
    }
  }
  const over = run()

  return {
    take() {
      const taken = tally
      tally = emptyTally()
      return taken
    },
    async stop() {
      stopping.abort()
      await over
      await Promise.all(running)
      await agent.close()
    },
  }
}

const emptyTally = (): Tally => ({ statuses: new Map(), sources: new Map(), millis: [], uploads: 0 })

function count<Key>(counts: Map<Key, number>, key: Key): void {
  counts.set(key, (counts.get(key) ?? 0) + 1)
}

/** `cidgate; hit; detail=memory` is `memory`; what had to be fetched is `upstream`. */
const sourceOf = (said: string): string =>
  /; *hit/.test(said) ? (/detail="?([\w-]+)/.exec(said)?.[1] ?? 'hit') : 'upstream'

const absent = (number: number): CID =>
  CID.createV1(0x55, create(0x12, createHash('sha256').update(`absent ${number} ${Date.now()}`).digest()))
