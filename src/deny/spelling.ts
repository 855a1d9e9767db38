// Spells CIDs and names as rules do. This is most of the cost of a check and the same ones recur (a
// folder for each entry, a name for each read), so results are cached.
import { LRUCache } from 'lru-cache'
import { CID } from 'multiformats/cid'
import { codec, parseKey } from '../core/cid.ts'
import { keyOf } from './rules.ts'

export type SpelledCid = { readonly hash: string; readonly v1: string }
export type SpelledName = { readonly key: string; readonly modern: string; readonly legacy: string }

export interface Spelling {
  cid(cid: CID): SpelledCid
  name(asked: string): SpelledName
}

const mostNames = 256
const mostKeptChars = 256

export function createSpelling(): Spelling {
  const cids = new WeakMap<CID, SpelledCid>()
  const names = new LRUCache<string, SpelledName>({ max: mostNames })

  return {
    cid(cid) {
      const known = cids.get(cid)
      if (known) return known
      const made = { hash: keyOf(cid.multihash.bytes), v1: CID.createV1(cid.code, cid.multihash).toString() }
      cids.set(cid, made)
      return made
    },
    name(asked) {
      const known = names.get(asked)
      if (known) return known
      const made = spellName(asked)
      if (asked.length <= mostKeptChars) names.set(asked, made)
      return made
    },
  }
}

function spellName(asked: string): SpelledName {
  const cid = parseKey(asked)
  if (cid) {
    const key = keyOf(cid.multihash.bytes)
    return { key, modern: key, legacy: CID.createV1(codec.libp2pKey, cid.multihash).toString() }
  }
  const domain = domainOf(asked)
  return { key: domain, modern: `/ipns/${domain}`, legacy: domain }
}

/** Converts a DNSLink name inlined as one label (`en-wikipedia--on--ipfs-org`) to its domain. */
function domainOf(name: string): string {
  const lower = name.toLowerCase().replace(/\.$/, '')
  if (lower.includes('.')) return lower
  return lower.replaceAll('--', '\0').replaceAll('-', '.').replaceAll('\0', '-')
}
