// The CIDs that a verified block links to: the CIDs that a DAG's next blocks may have.
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import { decode, type Token, Type } from 'cborg'
import { Tokenizer } from 'cborg/json'
import { CID } from 'multiformats/cid'
import type { Block } from '../core/block.ts'
import { codec } from '../core/cid.ts'
import { decodePb } from './dag-pb.ts'

/** Empty for a leaf, and for a block that does not decode: its reader reports that. */
export function linksOf(block: Block): CID[] {
  try {
    if (block.cid.code === codec.dagPb) return decodePb(block.bytes).Links.map((link) => link.Hash)
    return linksInDocument(block)
  } catch {
    return []
  }
}

/**
 * The links of a document in the order in which they are encoded. The decoded object has lost it: JavaScript moves keys
 * that look like numbers to the front. Throws for what does not decode; other codecs have no links.
 */
export function linksInDocument({ cid, bytes }: Block): CID[] {
  switch (cid.code) {
    case dagCbor.code:
      return linksInCbor(bytes)
    case dagJson.code:
      dagJson.decode(bytes) // throws for invalid dag-json, which its tokens alone do not show
      return linksInJson(bytes)
    default:
      return []
  }
}

const linkTag = 42

function linksInCbor(bytes: Uint8Array): CID[] {
  const found: CID[] = []
  const { decodeOptions: options } = dagCbor
  const readLink = options.tags[linkTag] as NonNullable<(typeof options.tags)[number]>
  const noteLink: typeof readLink = (control) => {
    const link: CID = readLink(control)
    found.push(link)
    return link
  }
  decode(bytes, { ...options, tags: { ...options.tags, [linkTag]: noteLink } })
  return found
}

/** A link is a map that begins with `"/": "<cid>"`. */
function linksInJson(bytes: Uint8Array): CID[] {
  const found: CID[] = []
  const tokens = new Tokenizer(bytes)
  let [last, beforeLast]: (Token | undefined)[] = []
  while (!tokens.done()) {
    const token = tokens.next()
    const isInLink = beforeLast?.type === Type.map && last?.type === Type.string && last.value === '/'
    if (isInLink && token.type === Type.string) found.push(CID.parse(token.value as string))
    beforeLast = last
    last = token
  }
  return found
}
