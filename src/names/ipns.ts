// What an IPNS key points at now: the newest valid record of several upstreams, kept for its TTL, served stale while
// nobody answers, and never past its end.
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { blockKey } from '../block.ts'
import type { Clock } from '../clock.ts'
import { Failure, isFailure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import { type IpnsRecord, newest, provedRecord } from './ipns-record.ts'

export type RecordSource = {
  readonly name: string
  /** The bytes of a record that claims to be this key's. */
  record(key: CID, signal: AbortSignal): Promise<Uint8Array>
  /** It sent something that is no valid record. */
  lied(failure: Failure): void
}

export type ResolvedRecord = {
  readonly record: IpnsRecord
  /** How long this answer may be kept downstream. */
  readonly freshMs: number
}

export interface IpnsNames {
  resolve(key: CID, options: { readonly signal: AbortSignal; readonly noCache?: boolean }): Promise<ResolvedRecord>
}

type Held = { readonly record: IpnsRecord; readonly at: number }

const mostKept = 10_000
const staleMs = 10_000 // a stale record is served this long before somebody is asked again
const graceMs = 400 // after the first valid record, the others have this long to bring a newer one

export function createIpnsNames(options: {
  readonly sources: () => readonly RecordSource[]
  readonly deadlineMs: number
  readonly clock: Clock
  readonly log: Log
}): IpnsNames {
  const { sources, deadlineMs, clock, log } = options
  const held = new LRUCache<string, Held>({ max: mostKept })
  const flights = new Map<string, Promise<IpnsRecord>>()

  const answer = (record: IpnsRecord, at: number): ResolvedRecord => ({
    record,
    freshMs: Math.max(0, Math.min(record.ttlMs - (clock.now() - at), record.endsAt - clock.now())),
  })

  /** Asks everybody at once; settles soon after the first valid record, or when all have failed. */
  async function fetch(key: CID, known: IpnsRecord | undefined): Promise<IpnsRecord> {
    const asked = sources()
    const own = new AbortController()
    const found: IpnsRecord[] = known && known.endsAt > clock.now() ? [known] : []
    const failures: unknown[] = []
    const enough = Promise.withResolvers<void>()
    let stopGrace = () => {}
    const stop = clock.after(deadlineMs, enough.resolve)
    const all = Promise.all(
      asked.map(async (source) => {
        try {
          found.push(await provedRecord(key, await source.record(key, own.signal), clock.now()))
          stopGrace()
          stopGrace = clock.after(graceMs, enough.resolve)
        } catch (error) {
          failures.push(error)
          if (isFailure(error, 'false-bytes')) source.lied(error)
        }
      }),
    )
    try {
      await Promise.race([all, enough.promise])
    } finally {
      stop()
      stopGrace()
      own.abort(new Failure('cancelled', 'a record was found', { source: 'ours' }))
    }
    const record = newest(key, found)
    if (record && (record !== known || failures.length < asked.length)) return record
    if (record) {
      log('info', 'ipns.stale', { key: key.toString() })
      return record
    }
    if (
      asked.length > 0 &&
      failures.length === asked.length &&
      failures.every((failure) => isFailure(failure, 'not-found'))
    ) {
      throw new Failure('not-found', `no upstream has a record of /ipns/${key}`, {
        source: 'upstream',
        cause: failures[0],
      })
    }
    throw new Failure('timeout', `no upstream sent a valid record of /ipns/${key}`, {
      source: 'upstream',
      cause: failures[0],
    })
  }

  function join(key: CID, known: IpnsRecord | undefined): Promise<IpnsRecord> {
    const name = blockKey(key)
    let flight = flights.get(name)
    if (!flight) {
      flight = fetch(key, known).then((record) => {
        const isNew = record !== known
        const at = isNew ? clock.now() : clock.now() - Math.max(0, record.ttlMs - staleMs)
        held.set(name, { record, at })
        return record
      })
      flights.set(name, flight)
      flight.catch(() => {}).finally(() => flights.delete(name))
    }
    return flight
  }

  return {
    async resolve(key, { signal, noCache = false }) {
      signal.throwIfAborted()
      const kept = held.get(blockKey(key))
      const isFresh = kept && kept.record.endsAt > clock.now() && clock.now() - kept.at < kept.record.ttlMs
      if (kept && isFresh && !noCache) return answer(kept.record, kept.at)
      const left = Promise.withResolvers<never>()
      const leave = () => left.reject(signal.reason)
      signal.addEventListener('abort', leave, { once: true })
      try {
        const record = await Promise.race([join(key, kept?.record), left.promise])
        return answer(record, held.get(blockKey(key))?.at ?? clock.now())
      } finally {
        signal.removeEventListener('abort', leave)
      }
    },
  }
}
