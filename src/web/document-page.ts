// A dag-json or dag-cbor document as a page with links to follow. A bounded view, not a conversion: the bytes are one
// link away.

import { base64 } from 'multiformats/bases/base64'
import { CID } from 'multiformats/cid'
import type { Entity } from '../content/entity.ts'
import { codec } from '../core/cid.ts'
import { readDocument } from '../ipld/dag-links.ts'
import { escaped, pageEnd, pageTop, shown, templateHash } from './page.ts'
import { cidLink, type Whereabouts } from './urls.ts'

const codecs: ReadonlyMap<number, string> = new Map([
  [codec.dagCbor, 'dag-cbor'],
  [codec.dagJson, 'dag-json'],
])
const mostChars = 512 * 1024
const mostDepth = 64
const mostStringChars = 4096

export const hasPage = ({ cid }: Entity): boolean => codecs.has(cid.code)

export function documentPage(at: Whereabouts, { cid, block }: Entity): Uint8Array {
  const codec = codecs.get(cid.code) ?? ''
  let text = top(cid.toString(), codec)
  let isWhole = true
  for (const piece of markup(at, readDocument(cid, block), '', 0)) {
    if (text.length + piece.length > mostChars) {
      isWhole = false
      break
    }
    text += piece
  }
  return Buffer.from(text + bottom(block.byteLength, isWhole))
}

const top = (cid: string, codec: string): string => `${pageTop(`${codec} ${cid}`)}<h1>A ${codec} document</h1>
<p>CID <code class="whole" translate="no">${cid}</code></p>
<p class="dim"><a href="?format=${codec}">View as ${codec}</a><a href="?format=raw">Download the block</a><a href="?format=car">Download as .car</a></p>
<pre translate="no">`

const bottom = (bytes: number, isWhole: boolean): string =>
  `</pre>\n<footer>${bytes} bytes${isWhole ? '' : '; only the beginning is shown'}</footer>\n${pageEnd}`

/** As JSON is written, with links that can be followed and bytes in base64. */
function* markup(at: Whereabouts, value: unknown, indent: string, depth: number): Generator<string> {
  const link = CID.asCID(value)
  if (link) return yield `<a class="ipfs-hash" ${cidLink(at, link.toString())}>${link}</a>`
  if (value instanceof Uint8Array)
    return yield escaped(`bytes(${cut(base64.baseEncode(value.subarray(0, mostStringChars)))})`)
  if (value === null || typeof value !== 'object') return yield scalar(value)
  if (depth >= mostDepth) return yield '…'
  const isList = Array.isArray(value)
  const [open, close] = isList ? '[]' : '{}'
  const deeper = `${indent}  `
  let isFirst = true
  yield open as string
  for (const [key, inner] of isList ? value.entries() : Object.entries(value)) {
    yield `${isFirst ? '' : ','}\n${deeper}${isList ? '' : `${text(String(key))}: `}`
    yield* markup(at, inner, deeper, depth + 1)
    isFirst = false
  }
  yield `${isFirst ? '' : `\n${indent}`}${close}`
}

const cut = (long: string): string => (long.length > mostStringChars ? `${long.slice(0, mostStringChars)}…` : long)
const text = (value: string): string => shown(JSON.stringify(cut(value)))
const scalar = (value: unknown): string => (typeof value === 'string' ? text(value) : escaped(String(value)))

const template = templateHash(top('', '') + bottom(0, false))

export const documentEtag = (cid: CID): string => `"DagIndex-${template}_CID-${cid}"`
