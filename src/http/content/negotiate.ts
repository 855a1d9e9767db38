// Content negotiation: `?format=` overrides Accept (IPIP-523); without either, the file itself.
import { Failure } from '../../core/failure.ts'

export type FormatChoice = 'file' | 'raw' | 'car' | 'tar' | 'dag-json' | 'dag-cbor' | 'json' | 'cbor' | 'ipns-record'

export type Negotiated = {
  readonly as: FormatChoice
  /** Parameters of the requested media type: `version=1; order=dfs`. */
  readonly parameters: Readonly<Record<string, string>>
  /** The Accept header decided, so a cache must not give this response to other clients. */
  readonly byAccept: boolean
}

const mediaTypes: Readonly<Record<string, FormatChoice>> = {
  'application/vnd.ipld.raw': 'raw',
  'application/vnd.ipld.car': 'car',
  'application/x-tar': 'tar',
  'application/vnd.ipld.dag-json': 'dag-json',
  'application/vnd.ipld.dag-cbor': 'dag-cbor',
  'application/json': 'json',
  'application/cbor': 'cbor',
  'application/vnd.ipfs.ipns-record': 'ipns-record',
}

export const formats: ReadonlySet<string> = new Set([
  'raw',
  'car',
  'tar',
  'dag-json',
  'dag-cbor',
  'json',
  'cbor',
  'ipns-record',
])

type Accepted = { readonly as: FormatChoice; readonly parameters: Readonly<Record<string, string>> }

export function negotiate(query: URLSearchParams, accept: string | undefined): Negotiated {
  const asked = query.get('format')
  const accepted = accept === undefined ? undefined : best(accept)
  if (asked !== null && asked !== '') {
    if (!formats.has(asked)) {
      throw new Failure('malformed', `unknown format ${JSON.stringify(asked)}; known are ${[...formats].join(', ')}`, {
        source: 'client',
      })
    }
    const as = asked as FormatChoice
    return { as, parameters: accepted?.as === as ? accepted.parameters : {}, byAccept: false }
  }
  return accepted ? { ...accepted, byAccept: true } : { as: 'file', parameters: {}, byAccept: false }
}

const mostRemembered = 1000

/** Caches the choice by Accept header: clients send the same few values. */
export function createAccepts(): (accept: string) => FormatChoice {
  const remembered = new Map<string, FormatChoice>()

  return (accept) => {
    const known = remembered.get(accept)
    if (known) return known
    // A client that accepts JSON wants a file that is JSON: `json` as a format would be a codec.
    const found = best(accept)?.as ?? 'file'
    const as = found === 'json' ? 'file' : found
    if (remembered.size >= mostRemembered) remembered.clear()
    remembered.set(accept, as)
    return as
  }
}

function best(accept: string): Accepted | undefined {
  let winner: (Accepted & { q: number }) | undefined
  for (const part of accept.split(',')) {
    const [type = '', ...rest] = part.split(';').map((text) => text.trim())
    const parameters = Object.fromEntries(
      rest.map((text) => {
        const at = text.indexOf('=')
        return at < 0
          ? [text.toLowerCase(), '']
          : [
              text.slice(0, at).trim().toLowerCase(),
              text
                .slice(at + 1)
                .trim()
                .replace(/^"|"$/g, ''),
            ]
      }),
    )
    const as = mediaTypes[type.toLowerCase()]
    const q = parameters['q'] === undefined ? 1 : Number(parameters['q'])
    if (as && q > 0 && (!winner || q > winner.q)) winner = { as, parameters, q }
  }
  return winner && { as: winner.as, parameters: winner.parameters }
}

/** The q-value of a media type; 0 if the client does not name it. */
export function qualityOf(accept: string | undefined, type: string): number {
  const part = accept?.split(',').find((one) => one.split(';')[0]?.trim().toLowerCase() === type)
  if (part === undefined) return 0
  const q = Number(/;\s*q=([\d.]+)/i.exec(part)?.[1] ?? 1)
  return Number.isNaN(q) ? 0 : q
}
