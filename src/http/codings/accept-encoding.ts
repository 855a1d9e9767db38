// Which codings a client takes, by its Accept-Encoding (RFC 9110 §12.5.3).
import { type Coding, codings } from './codings.ts'

export type Accepted = {
  /** The one to send; undefined: the plain bytes. */
  readonly best: Coding | undefined
  /** All that the client can read, the best first. */
  readonly all: readonly Coding[]
}

/** Of a client that names none. */
export const plainOnly: Accepted = { best: undefined, all: [] }

const mostRemembered = 1000
// Browsers send some twenty characters. Longer ones are read each time, so that what is remembered stays small.
const longestRemembered = 200

/** Reads each header once: clients send the same few values again and again. */
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
 * The highest weight wins, and among equal ones ours. The plain bytes are what every client can read: they are sent where they
 * have more weight than each coding, and, although `identity;q=0` refuses them, where there is nothing else.
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

/** A weight that is none counts as 0: a coding that may be refused is not sent. */
function weightOf(parameters: readonly string[]): number {
  for (const parameter of parameters) {
    const [, given] = /^q\s*=\s*(.*)$/.exec(parameter) ?? []
    if (given !== undefined) return /^(?:0(?:\.\d*)?|1(?:\.0*)?)$/.test(given) ? Number(given) : 0
  }
  return 1
}
