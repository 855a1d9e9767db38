// Verifies IPNS records: signed by the key of their name, and not expired. The only file that uses
// the `ipns` package, which is loaded with the first record because it takes 14 MB and a fifth of
// the startup time.
import { base36 } from 'multiformats/bases/base36'
import { CID } from 'multiformats/cid'
import { maxRecordBytes } from '../../backends/upstreams/contract.ts'
import { codec, hash } from '../core/cid.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Statement, Store, StoreReader } from '../store/store.ts'

export type IpnsRecord = {
  readonly bytes: Uint8Array
  /** `/ipfs/…` or `/ipns/…`. */
  readonly value: string
  readonly sequence: bigint
  /** The publisher's cache lifetime. */
  readonly ttlMs: number
  /** Milliseconds since the epoch, after which the record is never served. */
  readonly endsAt: number
}

const defaultTtlMs = 300_000
const keyFunctions: ReadonlySet<number> = new Set<number>([hash.identity, hash.sha256]) // the key itself, or its sha2-256

async function library() {
  const [{ multihashToIPNSRoutingKey, unmarshalIPNSRecord }, { ipnsValidator }] = await Promise.all([
    import('ipns'),
    import('ipns/validator'),
  ])
  return { multihashToIPNSRoutingKey, unmarshalIPNSRecord, ipnsValidator }
}

const isCount = (value: unknown): value is bigint => typeof value === 'bigint' && value >= 0n

/** Normalizes a key. Throws for a CID that cannot be the hash of a key. */
export function canonicalKey(cid: CID): CID {
  const { code, digest } = cid.multihash
  if (keyFunctions.has(code) && digest.byteLength <= 64) return CID.createV1(codec.libp2pKey, cid.multihash)
  throw new Failure('malformed', `${cid} is not an IPNS key`, { source: 'client' })
}

/** The key in base36, its usual spelling. */
export const keyText = (key: CID): string => key.toString(base36)

/**
 * Verifies that this key signed the record; accepts an expired one. Throws `hash-mismatch` for
 * anything else.
 */
export async function signedRecord(key: CID, bytes: Uint8Array): Promise<IpnsRecord> {
  // Outside the try block: a failure to load the package says nothing about the record.
  const { multihashToIPNSRoutingKey, unmarshalIPNSRecord, ipnsValidator } = await library()
  try {
    if (bytes.byteLength > maxRecordBytes) throw new Error('it is too large')
    const routingKey = multihashToIPNSRoutingKey(key.multihash as Parameters<typeof multihashToIPNSRoutingKey>[0])
    await ipnsValidator(routingKey, bytes).catch((error: unknown) => {
      // Ignore the package's expiry check, which follows the signature check: callers check the
      // expiry by their own clock.
      if ((error as { name?: unknown } | null)?.name !== 'RecordExpiredError') throw error
    })
    const { value, sequence, ttl, validity } = unmarshalIPNSRecord(bytes)
    const endsAt = Date.parse(validity)
    if (Number.isNaN(endsAt)) throw new Error('its validity is not a date')
    // The package does not validate these: a key may have signed a record without a sequence, or
    // with one that is not a number.
    if (!isCount(sequence)) throw new Error('its sequence is not a count')
    if (ttl !== undefined && !isCount(ttl)) throw new Error('its TTL is not a count')
    return { bytes, value, sequence, ttlMs: ttl === undefined ? defaultTtlMs : Number(ttl / 1_000_000n), endsAt }
  } catch (cause) {
    throw new Failure('hash-mismatch', `the IPNS record sent for /ipns/${keyText(key)} is not valid`, {
      source: 'upstream',
      cause,
    })
  }
}

/** Also rejects with `not-found` for a record that has expired by `now`. */
export async function provedRecord(key: CID, bytes: Uint8Array, now: number): Promise<IpnsRecord> {
  const record = await signedRecord(key, bytes)
  if (record.endsAt > now) return record
  throw new Failure(
    'not-found',
    `the IPNS record of /ipns/${keyText(key)} expired at ${new Date(record.endsAt).toISOString()}`,
    { source: 'upstream' },
  )
}

/**
 * Selects the newest of several valid records: the highest sequence, then the latest end, then the
 * first.
 */
export function newest(records: readonly IpnsRecord[]): IpnsRecord | undefined {
  const isNewer = (one: IpnsRecord, other: IpnsRecord) =>
    one.sequence === other.sequence ? one.endsAt > other.endsAt : one.sequence > other.sequence
  return records.reduce<IpnsRecord | undefined>((best, one) => (best && !isNewer(one, best) ? best : one), undefined)
}

export interface RecordStore {
  /** Undefined if there is none. Rejects if the disk fails. */
  read(key: CID): Promise<Uint8Array | undefined>
  /** Queues the write; the last one of a key wins. */
  write(key: CID, bytes: Uint8Array): void
  remove(key: CID): void
  /** Resolves when everything is written. */
  close(): Promise<void>
}

/** Undefined `bytes` means removal. */
export type QueuedRecord = { readonly name: string; readonly bytes: Uint8Array | undefined }

type RecordStoreOptions = {
  readonly store: Pick<StoreReader, 'read'>
  readonly write: (records: readonly QueuedRecord[]) => Promise<void>
  readonly log: Log
}

const maxWaiting = 1000

const putSql = `insert into record (name, bytes, at) values (?, ?, (select coalesce(max(at), 0) + 1 from record))
on conflict (name) do update set bytes = excluded.bytes, at = excluded.at`
const removeSql = 'delete from record where name = ?'
const trimSql = 'delete from record where at <= (select at from record order by at desc limit 1 offset ?)'

/** Keeps up to `max` records; deletes the least recently written. */
export function writeRecords(
  store: Pick<Store, 'write'>,
  max: number,
  records: readonly QueuedRecord[],
): Promise<void> {
  const statements = records.map(
    ({ name, bytes }): Statement => (bytes ? { sql: putSql, args: [name, bytes] } : { sql: removeSql, args: [name] }),
  )
  return store.write([...statements, { sql: trimSql, args: [max] }])
}

export function createRecordStore({ store, write, log }: RecordStoreOptions): RecordStore {
  let waiting = new Map<string, Uint8Array | undefined>()
  let inProgress: ReadonlyMap<string, Uint8Array | undefined> = new Map()
  let writer: Promise<void> | undefined
  let complained = false

  function complain(what: string, error: unknown): void {
    if (complained) return
    complained = true
    log('warn', 'names.store-failed', { what, error: wordsOf(error) })
  }

  /** Records that arrive during a commit share the next one. */
  async function drain(): Promise<void> {
    while (waiting.size > 0) {
      const records = [...waiting].map(([name, bytes]) => ({ name, bytes }))
      inProgress = waiting
      waiting = new Map()
      await write(records).then(
        () => {
          complained = false
        },
        (error) => complain(`${records.length} records could not be stored`, error),
      )
    }
    inProgress = new Map()
    writer = undefined
  }

  function enqueue(key: CID, bytes: Uint8Array | undefined): void {
    const name = keyText(key)
    if (!waiting.has(name) && waiting.size >= maxWaiting) return
    waiting.set(name, bytes)
    writer ??= Promise.resolve().then(drain)
  }

  return {
    async read(key) {
      const name = keyText(key)
      for (const some of [waiting, inProgress]) if (some.has(name)) return some.get(name)
      try {
        const [row] = await store.read('select bytes from record where name = ?', [name])
        return row?.bytes as Uint8Array | undefined
      } catch (error) {
        complain(`the record of ${name} could not be read`, error)
        throw error
      }
    },
    write: (key, bytes) => enqueue(key, bytes),
    remove: (key) => enqueue(key, undefined),
    async close() {
      while (writer !== undefined) await writer
    },
  }
}
