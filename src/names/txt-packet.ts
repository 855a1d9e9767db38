// Encodes a TXT query and validates its response. Anything except a complete response to this query
// throws, with a message that names no server.
import { type DecodedPacket, decode, encode, TRUNCATED_RESPONSE } from 'dns-packet'

export type TxtAnswer = { readonly texts: readonly string[]; readonly ttlMs: number }

const recursionDesired = 0x100
const responseBit = 0x80

export const txtQuestion = (name: string, id: number): Buffer =>
  Buffer.from(encode({ type: 'query', id, flags: recursionDesired, questions: [{ type: 'TXT', name, class: 'IN' }] }))

/**
 * True if a packet has the id of this query. Others on the same socket are forged, or late
 * responses to another.
 */
export const hasIdOf = (question: Buffer, packet: Buffer): boolean =>
  packet.length >= 12 && packet.readUInt16BE(0) === question.readUInt16BE(0)

/** `cut`: truncated, so it must be requested over another transport. */
export function txtAnswer(name: string, question: Buffer, bytes: Buffer): TxtAnswer | 'cut' {
  if (!hasIdOf(question, bytes)) throw new Error('it answered with the number of another question')
  // An echoed query has no records, and must not look like a name without any.
  if (((bytes[2] ?? 0) & responseBit) === 0) throw new Error('it sent a question back')
  const packet: DecodedPacket = decode(bytes)
  const { questions = [], answers = [], rcode, flags = 0 } = packet as DecodedPacket & { readonly rcode?: string }
  if (rcode !== 'NOERROR' && rcode !== 'NXDOMAIN') throw new Error(`it answered ${rcode} for ${name}`)
  const [asked] = questions
  if (questions.length !== 1 || asked?.type !== 'TXT' || !isSame(asked.name, name))
    throw new Error('it answered another question')
  if (flags & TRUNCATED_RESPONSE) return 'cut'

  // Follows CNAMEs; the shortest TTL applies.
  const aliases = new Map(
    answers.flatMap((one) => (one.type === 'CNAME' ? [[one.name.toLowerCase(), one] as const] : [])),
  )
  const ttls: number[] = []
  let owner = name.toLowerCase()
  for (let alias = aliases.get(owner); alias; alias = aliases.get(owner)) {
    aliases.delete(owner)
    ttls.push(alias.ttl ?? 0)
    owner = alias.data.toLowerCase()
  }
  const found = answers.flatMap((one) => (one.type === 'TXT' && isSame(one.name, owner) ? [one] : []))
  if (found.length === 0) return { texts: [], ttlMs: 0 }
  ttls.push(...found.map(({ ttl }) => ttl ?? 0))
  const texts = found.map(({ data }) =>
    [data]
      .flat()
      .map((part) => part.toString())
      .join(''),
  )
  return { texts, ttlMs: Math.min(...ttls) * 1000 }
}

const isSame = (one: string, other: string): boolean => one.toLowerCase() === other.toLowerCase()
