// Verifies IPNS records: signed by the key of their name, and not expired. The only file that uses
// the `ipns` package, which is loaded with the first record because it takes 14 MB and a fifth of
// the startup time.
import { base36 } from 'multiformats/bases/base36'
import { CID } from 'multiformats/cid'
import { maxRecordBytes } from '../../backends/upstreams/contract.ts'
import { codec, hash } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'

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
    {
      source: 'upstream',
    },
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
