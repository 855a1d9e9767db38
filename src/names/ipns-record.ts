// An IPNS record, proved: signed by the key it is named after, and not past its end. The `ipns` package stops here.
import { multihashToIPNSRoutingKey, unmarshalIPNSRecord } from 'ipns'
import { ipnsSelector } from 'ipns/selector'
import { ipnsValidator } from 'ipns/validator'
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
  /** Milliseconds since the epoch: never served past this. */
  readonly endsAt: number
}

const defaultTtlMs = 300_000
const keyFunctions: ReadonlySet<number> = new Set<number>([hash.identity, hash.sha256]) // the key itself, or its sha2-256

function routingKey({ multihash }: CID): Uint8Array {
  return multihashToIPNSRoutingKey(multihash as Parameters<typeof multihashToIPNSRoutingKey>[0])
}

/** The same key in one form, however it was spelled. Throws for what cannot be the hash of a key. */
export function canonicalKey(cid: CID): CID {
  const { code, digest } = cid.multihash
  if (keyFunctions.has(code) && digest.byteLength <= 64) return CID.createV1(codec.libp2pKey, cid.multihash)
  throw new Failure('malformed', `${cid} is not an IPNS key`, { source: 'client' })
}

/** As it is spelled everywhere: base36. */
export const keyText = (key: CID): string => key.toString(base36)

/** What this key signed, also when it is past its end. Throws `false-bytes` for what is no record of it. */
export async function signedRecord(key: CID, bytes: Uint8Array): Promise<IpnsRecord> {
  try {
    if (bytes.byteLength > maxRecordBytes) throw new Error('it is too large')
    await ipnsValidator(routingKey(key), bytes).catch((error: unknown) => {
      // Its end is for others to look at, by our clock; the package does so after the signature.
      if ((error as { name?: unknown } | null)?.name !== 'RecordExpiredError') throw error
    })
    const { value, sequence, ttl, validity } = unmarshalIPNSRecord(bytes)
    const endsAt = Date.parse(validity)
    if (Number.isNaN(endsAt)) throw new Error('its validity is not a date')
    return { bytes, value, sequence, ttlMs: ttl === undefined ? defaultTtlMs : Number(ttl / 1_000_000n), endsAt }
  } catch (cause) {
    throw new Failure('false-bytes', `the IPNS record sent for /ipns/${keyText(key)} is not valid`, {
      source: 'upstream',
      cause,
    })
  }
}

/** The same, and `not-found` for one that is past its end at this time. */
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

/** Of several valid records the newest: the highest sequence, then the latest end. */
export function newest(key: CID, records: readonly IpnsRecord[]): IpnsRecord | undefined {
  if (records.length === 0) return undefined
  const all = records.map(({ bytes }) => bytes)
  return records[ipnsSelector(routingKey(key), all)]
}
