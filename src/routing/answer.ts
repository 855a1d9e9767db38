// Reads the response of a Delegated Routing V1 server, streamed (ndjson) or as one JSON document.
// Strangers write its records: sizes are bounded, and a malformed record is skipped.
import { Failure } from '../core/failure.ts'

/** A peer as a router describes it; nothing of it is verified. */
export type PeerRecord = {
  readonly id: string | undefined
  readonly addresses: readonly string[]
  readonly protocols: readonly string[]
}

export const maxAnswerBytes = 1024 * 1024
export const maxLineBytes = 64 * 1024
export const maxRecords = 200
const maxAddresses = 16
const maxWordChars = 1024

const ndjsonType = 'application/x-ndjson'
export const jsonType = 'application/json'

/**
 * Rejects with a Failure for any other content type. Stops at a limit, after the records before it.
 */
export async function* readPeers(
  contentType: string | undefined,
  chunks: AsyncIterable<Uint8Array>,
): AsyncGenerator<PeerRecord> {
  const type = contentType?.split(';')[0]?.trim().toLowerCase()
  if (type !== ndjsonType && type !== jsonType)
    throw new Failure('upstream-error', `it answered with Content-Type ${type ?? 'none'}, expected ${ndjsonType}`, {
      source: 'upstream',
    })
  let records = 0
  for await (const value of type === ndjsonType ? lines(chunks) : listed(chunks)) {
    const peer = peerOf(value)
    if (peer) yield peer
    if (++records >= maxRecords) return
  }
}

/** Parses each line; skips a line that is too long or not JSON. */
async function* lines(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<unknown> {
  let held: Uint8Array[] = []
  let heldBytes = 0
  let isTooLong = false
  let left = maxAnswerBytes
  const take = (piece: Uint8Array): void => {
    heldBytes += piece.byteLength
    isTooLong ||= heldBytes > maxLineBytes
    if (isTooLong) held = []
    else held.push(piece)
  }
  const end = (): unknown => {
    const value = isTooLong ? undefined : parsed(Buffer.concat(held))
    held = []
    heldBytes = 0
    isTooLong = false
    return value
  }
  for await (const chunk of chunks) {
    const piece = chunk.subarray(0, left)
    let from = 0
    for (let at = piece.indexOf(0x0a); at >= 0; at = piece.indexOf(0x0a, from)) {
      take(piece.subarray(from, at))
      from = at + 1
      const value = end()
      if (value !== undefined) yield value
    }
    take(piece.slice(from))
    left -= piece.byteLength
    if (left <= 0) return
  }
  const last = end()
  if (last !== undefined) yield last
}

async function* listed(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<unknown> {
  const pieces: Uint8Array[] = []
  let bytes = 0
  for await (const chunk of chunks) {
    bytes += chunk.byteLength
    if (bytes > maxAnswerBytes)
      throw new Failure('too-large', `its answer is larger than ${maxAnswerBytes} bytes`, { source: 'upstream' })
    pieces.push(Uint8Array.from(chunk))
  }
  const whole = parsed(Buffer.concat(pieces))
  const list = isMapping(whole) && (whole['Providers'] ?? whole['Peers'] ?? [])
  if (!Array.isArray(list))
    throw new Failure('upstream-error', 'its answer has no list of providers', { source: 'upstream' })
  yield* list
}

function parsed(bytes: Buffer): unknown {
  if (bytes.byteLength === 0) return undefined
  try {
    return JSON.parse(bytes.toString('utf8'))
  } catch {
    return undefined
  }
}

/**
 * Returns undefined for a record of another schema or with a field of the wrong type. Missing lists
 * are empty.
 */
export function peerOf(value: unknown): PeerRecord | undefined {
  if (!isMapping(value) || value['Schema'] !== 'peer') return undefined
  const { ID: id, Addrs: addresses, Protocols: protocols } = value
  if (id !== undefined && id !== null && !isWord(id)) return undefined
  if (!isList(addresses) || !isList(protocols)) return undefined
  return {
    id: id ?? undefined,
    addresses: (addresses ?? []).filter(isWord).slice(0, maxAddresses),
    protocols: (protocols ?? []).filter(isWord).slice(0, maxAddresses),
  }
}

const isMapping = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

const isWord = (value: unknown): value is string => typeof value === 'string' && value.length <= maxWordChars

const isList = (value: unknown): value is readonly unknown[] | null | undefined =>
  value === undefined || value === null || Array.isArray(value)
