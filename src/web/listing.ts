// Renders a directory as a page. Up to a limit it is sorted: directories first, numbers by value. A
// larger one is streamed in stored order.
import { CID } from 'multiformats/cid'
import type { DirectoryEntry } from '../content/resolve.ts'
import { spell } from '../core/cid.ts'
import { typeByName } from './media-types.ts'
import {
  breadcrumbs,
  cidLink,
  directoryUrl,
  encodeName,
  escaped,
  isLinkable,
  pageEnd,
  pageTop,
  shortCid,
  shown,
  templateHash,
  type Whereabouts,
} from './page.ts'

export const maxSorted = 5_000
// A name may be as long as a block.
const maxSortedChars = 4 * 1024 * 1024
const pieceChars = 16 * 1024

export async function* listingPage(
  at: Whereabouts,
  cid: CID,
  entries: AsyncIterable<DirectoryEntry>,
): AsyncGenerator<Uint8Array> {
  let text = ''
  let count = 0
  let bytes = 0
  for await (const entry of inOrder(entries)) {
    // Sent with the first entry: until then a failure can still be an error response.
    if (count++ === 0) text = top(at, cid)
    bytes += entry.size ?? 0
    text += row(at, entry)
    if (text.length < pieceChars) continue
    yield Buffer.from(text)
    text = ''
  }
  yield Buffer.from((count === 0 ? top(at, cid) : text) + bottom(count, bytes))
}

// With all blocks in memory nothing else would yield to other requests.
const entriesPerSlice = 128
const nextIteration = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

async function* inOrder(entries: AsyncIterable<DirectoryEntry>): AsyncGenerator<DirectoryEntry> {
  const kept: DirectoryEntry[] = []
  let isSorted = true
  let chars = 0
  let count = 0
  for await (const entry of entries) {
    if (++count % entriesPerSlice === 0) await nextIteration()
    chars += entry.name.length
    if (isSorted && kept.length < maxSorted && chars <= maxSortedChars) {
      kept.push(entry)
      continue
    }
    // Too many to sort: send the entries so far first.
    isSorted = false
    yield* kept.splice(0)
    yield entry
  }
  yield* kept.sort(byName)
}

const collator = new Intl.Collator('en', { numeric: true })

function byName(one: DirectoryEntry, other: DirectoryEntry): number {
  const directories = Number(other.type === 'directory') - Number(one.type === 'directory')
  return directories || collator.compare(one.name, other.name) || (one.name < other.name ? -1 : 1)
}

const top = (at: Whereabouts, cid: CID): string => {
  const path = `/${[at.namespace, at.root, ...at.segments].join('/')}`
  const up =
    at.segments.length > 0
      ? `<tr><td><a href="${escaped(directoryUrl(at))}..">..</a></td><td></td><td></td></tr>\n`
      : ''
  return `${pageTop(`Index of ${path}`)}${symbols}<h1>Index of ${breadcrumbs(at)}</h1>
<p>CID <code class="whole" translate="no">${cid}</code></p>
<p class="dim"><a href="?format=tar&amp;download=true">Download as .tar</a><a href="?format=car">Download as .car</a><a href="?format=json">View as JSON</a></p>
<table class="list"><thead><tr><th scope="col">Name</th><th scope="col">CID</th><th scope="col">Size</th></tr></thead><tbody>
${up}`
}

function row(at: Whereabouts, { name, cid, size, type }: DirectoryEntry): string {
  const label = shown(name)
  const link = isLinkable(name) ? `<a href="${escaped(directoryUrl(at) + encodeName(name))}">${label}</a>` : label
  const text = spell(cid)
  const hash = `<a class="ipfs-hash" translate="no" ${cidLink(at, text, name)}>${shortCid(text)}</a>`
  const isFolder = type === 'directory'
  const icon = `<svg aria-hidden="true"><use href="#${isFolder ? 'folder' : kindOf(name)}"/></svg>`
  return `<tr${isFolder ? ' class="d"' : ''}><td>${icon}${link}</td><td>${hash}</td><td>${size === undefined ? '' : inUnits(size)}</td></tr>\n`
}

type Kind = keyof typeof icons

const archive = /zip|gzip|tar|compressed|vnd\.ipld\.car/
const code = /json|javascript|xml|html|css|wasm|yaml|toml/

function kindOf(name: string): Kind {
  const type = typeByName(name) ?? ''
  const [kind = ''] = type.split('/', 1)
  if (kind === 'image' || kind === 'video' || kind === 'audio') return kind
  if (archive.test(type)) return 'archive'
  if (code.test(type)) return 'code'
  return kind === 'text' || type === 'application/pdf' ? 'text' : 'file'
}

const sheet = 'M3 1.5h6.5L13 5v9.5H3zM9.5 1.5V5H13'
/** 16 by 16 pixels. */
const icons = {
  folder: 'M1.5 3.5h4.5l1.5 2h7v8h-13z',
  file: sheet,
  text: `${sheet}M5.5 8h5M5.5 10h5M5.5 12h3`,
  code: `${sheet}M6.5 7.5 5 9.5l1.5 2M9.5 7.5l1.5 2-1.5 2`,
  archive: `${sheet}M6 1.5v2M7 3.5v2M6 5.5v2M7 7.5v2`,
  image: 'M1.5 2.5h13v11h-13zM2 11l4-4 3.5 3.5 2-2 3 3M10.5 5.5h1',
  video: 'M1.5 3.5h13v9h-13zM6.5 6v4l3.5-2z',
  audio: 'M6 12V3.5l7-1.5v8.5M6 12a2 1.5 0 1 1-4 0 2 1.5 0 0 1 4 0zM13 10.5a2 1.5 0 1 1-4 0 2 1.5 0 0 1 4 0z',
} as const

const symbols = `<svg hidden>${Object.entries(icons)
  .map(([kind, path]) => `<symbol id="${kind}" viewBox="0 0 16 16"><path d="${path}"/></symbol>`)
  .join('')}</svg>\n`

const bottom = (count: number, bytes: number): string =>
  `</tbody></table>\n<footer>${count} ${count === 1 ? 'entry' : 'entries'}, ${inUnits(bytes)}</footer>\n${pageEnd}`

const units: readonly string[] = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']

export function inUnits(bytes: number): string {
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, bytes)) / 10)))
  const value = bytes / 1024 ** power
  return `${power === 0 || value >= 99.95 ? Math.round(value) : value.toFixed(1)} ${units[power]}`
}

const sampleCid = CID.parse('bafkqaaa')
const sampleAt: Whereabouts = { namespace: 'ipfs', root: 'a', segments: ['b'], base: '', gateway: '', host: '' }
const sampleRow = row(sampleAt, { name: 'c', cid: sampleCid, size: 1, type: 'directory' })
const template = templateHash(top(sampleAt, sampleCid) + sampleRow + bottom(1, 1))

/**
 * The ETag contains the template, which another version changes. It is weak, because the page shows
 * which entries the tiers know to be directories.
 */
export const listingEtag = (cid: CID): string => `W/"DirIndex-${template}_CID-${cid}"`
