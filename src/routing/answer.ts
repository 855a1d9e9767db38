// Reads the response of a Delegated Routing V1 server, streamed (ndjson) or as one JSON document.
// Strangers write its records: sizes are bounded, and a malformed record is skipped.

import { isIP } from 'node:net'
import { Failure } from '../core/failure.ts'

/** A peer as a router describes it; nothing of it is verified. */
export type PeerRecord = {
  readonly id: string | undefined
  readonly addresses: readonly string[]
  readonly protocols: readonly string[]
}

const maxAnswerBytes = 1024 * 1024
export const maxLineBytes = 64 * 1024
const maxRecords = 200
const maxAddresses = 16
const maxWordChars = 1024

const ndjsonType = 'application/x-ndjson'
const jsonType = 'application/json'

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
  let bufferedBytes = 0
  let isTooLong = false
  let remaining = maxAnswerBytes
  const take = (piece: Uint8Array): void => {
    bufferedBytes += piece.byteLength
    isTooLong ||= bufferedBytes > maxLineBytes
    if (isTooLong) held = []
    else held.push(piece)
  }
  const end = (): unknown => {
    const value = isTooLong ? undefined : parsed(Buffer.concat(held))
    held = []
    bufferedBytes = 0
    isTooLong = false
    return value
  }
  for await (const chunk of chunks) {
    const piece = chunk.subarray(0, remaining)
    let from = 0
    for (let at = piece.indexOf(0x0a); at >= 0; at = piece.indexOf(0x0a, from)) {
      take(piece.subarray(from, at))
      from = at + 1
      const value = end()
      if (value !== undefined) yield value
    }
    take(piece.slice(from))
    remaining -= piece.byteLength
    if (remaining <= 0) return
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
  const document = parsed(Buffer.concat(pieces))
  const list = isMapping(document) && (document['Providers'] ?? document['Peers'] ?? [])
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
function peerOf(value: unknown): PeerRecord | undefined {
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

export type AddressRules = {
  /**
   * Permits loopback and private addresses; a literal one with plain HTTP and on any port, as in
   * Kubo.
   */
  readonly allowPrivate: boolean
  /** Permits plain HTTP, on port 80. */
  readonly allowHttp: boolean
  readonly ports: 'any' | readonly number[]
  /** True for an IP address inside the operator's network. */
  readonly isInside: (address: string) => boolean
}

// Some publishers write /tcp/443/http for HTTPS. A path is ignored, as Kubo and helia do (the
// gateway is at the root), and so is the peer ID.
const multiaddr =
  /^\/(?<kind>dns[46]?|ip[46])\/(?<host>[^/]+)(\/tcp\/(?<port>\d{1,5}))?\/(?<scheme>https?|tls(\/sni\/(?<sni>[^/]+))?\/http)(\/(http-path|p2p)\/[^/]+)*$/
const hostName = /^[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?$/i

/** The origin at a multiaddr; undefined if that is no gateway's, or one that may not be asked. */
export function gatewayAddress(text: string, rules: AddressRules): string | undefined {
  const { kind = '', host = '', port, scheme, sni } = multiaddr.exec(text)?.groups ?? {}
  const isName = kind.startsWith('dns') && host.length <= 253 && hostName.test(host)
  const isAddress = isIP(host) === Number(kind.at(-1)) && !host.includes('%')
  if (!(isName || (kind.startsWith('ip') && isAddress)) || !hostName.test(sni ?? 'none') || Number(port) === 0)
    return undefined
  const isTls = scheme !== 'http' || Number(port) === 443
  const name = sni ?? (isIP(host) === 6 ? `[${host}]` : host)
  const url = URL.parse(`${isTls ? 'https' : 'http'}://${name}${port === undefined ? '' : `:${port}`}`)
  if (url?.pathname !== '/' || url.hostname === '') return undefined
  // URL parsing turns names like 0x7f000001 and 127.1 into IP addresses: the parsed host is
  // checked.
  const literal = url.hostname.replace(/^\[|\]$/g, '')
  const isPrivate = isIP(literal) !== 0 && rules.isInside(literal)
  if (isPrivate) return rules.allowPrivate ? url.origin : undefined
  if (!isTls && !rules.allowHttp) return undefined
  const at = url.port === '' ? (isTls ? 443 : 80) : Number(url.port)
  const isPort = rules.ports === 'any' || rules.ports.includes(at) || (!isTls && at === 80)
  return isPort ? url.origin : undefined
}
