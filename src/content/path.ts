// Parses the path after `/ipfs/` into a CID and names. Refuses a path that two parsers could read
// differently, before any upstream is asked.
import type { CID } from 'multiformats/cid'
import { codec, isProvable, mostCidChars, parseCid, parseLeaf } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'
import type { ContentPath } from './entity.ts'

const mostPathChars = 8 * 1024
const mostSegments = 1024

/** The codecs that this gateway can decode. */
const readable: ReadonlySet<number> = new Set<number>([
  codec.raw,
  codec.dagPb,
  codec.dagCbor,
  codec.dagJson,
  codec.json,
  codec.cbor,
])

const malformed = (what: string): Failure => new Failure('malformed', what, { source: 'client' })

/** `rest`: the raw, still encoded text after `/ipfs/`, without the query. */
export function parsePath(rest: string): ContentPath {
  const { root, ...names } = splitPath(rest)
  return { cid: parseRoot(root), ...names }
}

/** Splits a path into the root as sent, of any kind, and the names after it. */
export function splitPath(rest: string): Omit<ContentPath, 'cid'> & { readonly root: string } {
  if (rest.length > mostPathChars) throw malformed(`the path is longer than ${mostPathChars} characters`)
  const [root = '', ...names] = rest.split('/')
  const encoded = names.filter((name) => name !== '')
  if (encoded.length > mostSegments) throw malformed(`the path has more than ${mostSegments} segments`)
  return { root, segments: encoded.map(decodeSegment), encoded }
}

export function parseRoot(text: string): CID {
  if (text.length > mostCidChars) throw malformed('the CID is too long')
  const cid = parseLeaf(text) ?? parseCid(text)
  if (!cid) throw malformed(`invalid path ${JSON.stringify(`/ipfs/${text}`)}: not a CID; expected /ipfs/<cid>[/<path>]`)
  if (cid.code === codec.libp2pKey) throw malformed(`${text} is an IPNS key and not content: ask for /ipns/${text}`)
  if (!readable.has(cid.code))
    throw malformed(`the codec 0x${cid.code.toString(16)} of ${text} is not one this gateway reads`)
  if (!isProvable(cid)) {
    throw malformed(`${text} cannot be proved: its hash function or digest length is not one this gateway trusts`)
  }
  return cid
}

function decodeSegment(encoded: string): string {
  // No client sends these unencoded, and URL parsers disagree on them.
  if (/[\\#]/.test(encoded)) throw malformed('a backslash or # in the path has to be percent-encoded')
  let name: string
  try {
    name = decodeURIComponent(encoded)
  } catch {
    throw malformed(`${JSON.stringify(encoded)} in the path is not percent-encoded UTF-8`)
  }
  if (name === '.' || name === '..') throw malformed('a path cannot hold . or .. segments')
  if (/[\0/]/.test(name)) throw malformed('a name in the path cannot hold a slash or NUL')
  if (!name.isWellFormed()) throw malformed('a name in the path is not well-formed Unicode')
  return name
}
