// Verifies IPNS records: signed by the key they are named after, and not expired. No other file knows the `ipns`
// package, and it is loaded with the first record: with what it brings it takes 14 MB and a fifth of the time of a start.
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
  /** How long its publisher lets it be kept. */
  readonly ttlMs: number
  /** Milliseconds since the epoch: the record is never served past this. */
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

/** One form for every spelling of a key. Throws for what cannot be the hash of a key. */
export function canonicalKey(cid: CID): CID {
  const { code, digest } = cid.multihash
  if (keyFunctions.has(code) && digest.byteLength <= 64) return CID.createV1(codec.libp2pKey, cid.multihash)
  throw new Failure('malformed', `${cid} is not an IPNS key`, { source: 'client' })
}

/** As it is spelled everywhere: base36. */
export const keyText = (key: CID): string => key.toString(base36)

/** The record that this key signed, also when it has expired. Throws `false-bytes` for anything else. */
export async function signedRecord(key: CID, bytes: Uint8Array): Promise<IpnsRecord> {
  // Not within: that it cannot be loaded says nothing about the record.
  const { multihashToIPNSRoutingKey, unmarshalIPNSRecord, ipnsValidator } = await library()
  try {
    if (bytes.byteLength > maxRecordBytes) throw new Error('it is too large')
    const routingKey = multihashToIPNSRoutingKey(key.multihash as Parameters<typeof multihashToIPNSRoutingKey>[0])
    await ipnsValidator(routingKey, bytes).catch((error: unknown) => {
      // Callers check the expiry, by their own clock; the package does so after the signature.
      if ((error as { name?: unknown } | null)?.name !== 'RecordExpiredError') throw error
    })
    const { value, sequence, ttl, validity } = unmarshalIPNSRecord(bytes)
    const endsAt = Date.parse(validity)
    if (Number.isNaN(endsAt)) throw new Error('its validity is not a date')
    // The package takes what the data says: a key may have signed a record without a sequence, or with one that is no number.
    if (!isCount(sequence)) throw new Error('its sequence is not a count')
    if (ttl !== undefined && !isCount(ttl)) throw new Error('its TTL is not a count')
    return { bytes, value, sequence, ttlMs: ttl === undefined ? defaultTtlMs : Number(ttl / 1_000_000n), endsAt }
  } catch (cause) {
    throw new Failure('false-bytes', `the IPNS record sent for /ipns/${keyText(key)} is not valid`, {
      source: 'upstream',
      cause,
    })
  }
}

/** The same; rejects with `not-found` for a record that has expired at this time. */
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

/** Of several valid records the newest: the highest sequence, then the latest end, then the first. */
export function newest(records: readonly IpnsRecord[]): IpnsRecord | undefined {
  const isNewer = (one: IpnsRecord, other: IpnsRecord) =>
    one.sequence === other.sequence ? one.endsAt > other.endsAt : one.sequence > other.sequence
  return records.reduce<IpnsRecord | undefined>((best, one) => (best && !isNewer(one, best) ? best : one), undefined)
}
