// Selects content codings by Accept-Encoding (RFC 9110 §12.5.3).
import { type Coding, codings } from './codings.ts'

export type Accepted = {
  /** The coding to send; undefined means identity. */
  readonly best: Coding | undefined
  /** All codings that the client accepts, best first. */
  readonly all: readonly Coding[]
}

/** For a client that accepts no coding. */
export const plainOnly: Accepted = { best: undefined, all: [] }

const mostRemembered = 1000
// Browsers send some twenty characters. Longer values are not cached, to bound its memory.
const longestRemembered = 200

/** Caches parsed headers: clients send the same few values. */
export function createAcceptEncodings(): (header: string | undefined) => Accepted {
  const remembered = new Map<string, Accepted>()

  return (header) => {
    if (header === undefined) return plainOnly
    const known = remembered.get(header)
    if (known) return known
    const accepted = acceptedOf(header)
    if (header.length > longestRemembered) return accepted
    if (remembered.size >= mostRemembered) remembered.clear()
    remembered.set(header, accepted)
    return accepted
  }
}

/**
 * The highest weight wins; our order breaks ties. Identity is sent if it has more weight than each
 * coding, and also, despite `identity;q=0`, if no coding is acceptable, since every client can read
 * it.
 */
export function acceptedOf(header: string): Accepted {
  const weights = new Map<string, number>()
  for (const part of header.split(',')) {
    const [name = '', ...parameters] = part.split(';').map((text) => text.trim().toLowerCase())
    if (name !== '') weights.set(name === 'x-gzip' ? 'gzip' : name, weightOf(parameters))
  }
  const weight = (coding: Coding): number => weights.get(coding) ?? weights.get('*') ?? 0
  const all = codings.filter((coding) => weight(coding) > 0).sort((one, other) => weight(other) - weight(one))
  const [first] = all
  if (first === undefined) return plainOnly
  return { best: (weights.get('identity') ?? 0) > weight(first) ? undefined : first, all }
}

/** An invalid weight counts as 0: a coding that may be refused is not sent. */
function weightOf(parameters: readonly string[]): number {
  for (const parameter of parameters) {
    const [, given] = /^q\s*=\s*(.*)$/.exec(parameter) ?? []
    if (given !== undefined) return /^(?:0(?:\.\d*)?|1(?:\.0*)?)$/.test(given) ? Number(given) : 0
  }
  return 1
}
