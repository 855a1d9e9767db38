// An IPNS record, proved: signed by the key it is named after, and not past its end. The `ipns` package stops here.
import { multihashToIPNSRoutingKey, unmarshalIPNSRecord } from 'ipns'
import { ipnsSelector } from 'ipns/selector'
import { ipnsValidator } from 'ipns/validator'
import type { CID } from 'multiformats/cid'
import { Failure } from '../failure.ts'

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

/** The largest record there is (IPNS specification: 10 KiB). */
export const maxRecordBytes = 10 * 1024

const defaultTtlMs = 300_000

function routingKey(key: CID): Uint8Array {
  return multihashToIPNSRoutingKey(key.multihash as Parameters<typeof multihashToIPNSRoutingKey>[0])
}

/** Throws a Failure `false-bytes` for what is no valid record of this key at this time. */
export async function provedRecord(key: CID, bytes: Uint8Array, now: number): Promise<IpnsRecord> {
  try {
    if (bytes.byteLength > maxRecordBytes) throw new Error('it is too large')
    await ipnsValidator(routingKey(key), bytes)
    const { value, sequence, ttl, validity } = unmarshalIPNSRecord(bytes)
    const endsAt = Date.parse(validity)
    if (!(endsAt > now)) throw new Error('it is past its end')
    return { bytes, value, sequence, ttlMs: ttl === undefined ? defaultTtlMs : Number(ttl / 1_000_000n), endsAt }
  } catch (cause) {
    throw new Failure('false-bytes', `the record sent for /ipns/${key} is not a valid one`, {
      source: 'upstream',
      cause,
    })
  }
}

/** Of several valid records the newest: the highest sequence, then the latest end. */
export function newest(key: CID, records: readonly IpnsRecord[]): IpnsRecord | undefined {
  if (records.length === 0) return undefined
  return records[
    ipnsSelector(
      routingKey(key),
      records.map(({ bytes }) => bytes),
    )
  ]
}
