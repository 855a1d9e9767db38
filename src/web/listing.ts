// A directory as a page. Up to a bound it is sorted, directories first and numbers by value; a larger one is streamed
// in stored order, with nothing kept.
import { CID } from 'multiformats/cid'
import type { DirectoryEntry } from '../content/entity.ts'
import { spell } from '../core/cid.ts'
import { typeByName } from './media-types.ts'
import { escaped, pageEnd, pageTop, shown, templateHash } from './page.ts'
import { breadcrumbs, cidLink, directoryUrl, encodeName, isLinkable, shortCid, type Whereabouts } from './urls.ts'

export const mostSorted = 5_000
// A name may be as long as a block.
const mostSortedChars = 4 * 1024 * 1024
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
    // The top waits for the first entry: until then a failure is still an error that can be read.
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
const entriesPerTurn = 128
const turnOfOthers = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

async function* inOrder(entries: AsyncIterable<DirectoryEntry>): AsyncGenerator<DirectoryEntry> {
  const kept: DirectoryEntry[] = []
  let isSorted = true
  let chars = 0
  let count = 0
  for await (const entry of entries) {
    if (++count % entriesPerTurn === 0) await turnOfOthers()
    chars += entry.name.length
    if (isSorted && kept.length < mostSorted && chars <= mostSortedChars) {
      kept.push(entry)
      continue
    }
    // Too many to sort: the entries kept so far go first.
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
  return `${pageTop(`Index of ${path}`)}<h1>Index of ${breadcrumbs(at)}</h1>
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
  const kind = type === 'directory' ? 'd' : kindOf(name)
  return `<tr${kind === undefined ? '' : ` class="${kind}"`}><td>${link}</td><td>${hash}</td><td>${size === undefined ? '' : inUnits(size)}</td></tr>\n`
}

/** The class of its mark: what the name says that it is. */
function kindOf(name: string): 'image' | 'video' | 'audio' | undefined {
  const kind = typeByName(name)?.split('/', 1)[0]
  return kind === 'image' || kind === 'video' || kind === 'audio' ? kind : undefined
}

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
 * The ETag contains the template: the page of another version is another one. Weak, because the page shows, first,
 * which entries the tiers know to be directories, and that changes.
 */
export const listingEtag = (cid: CID): string => `W/"DirIndex-${template}_CID-${cid}"`
