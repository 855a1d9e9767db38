// What a spool holds, by its blocks alone: for an upload whose journal entry and its copy are both damaged. A block's file is named
// by its hash and not by its codec, so the links between the blocks say which of them are roots, and what they are written in.
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { base32 } from 'multiformats/bases/base32'
import { CID } from 'multiformats/cid'
import { decode as decodeDigest } from 'multiformats/hashes/digest'
import { type LocalStore, type Profile, profiles } from '../../../backends/pinning/contract.ts'
import { type Block, blockKey, maxBlockBytes, provesKey } from '../../core/block.ts'
import { codec } from '../../core/cid.ts'
import { orIfGone } from '../../core/disk/files.ts'
import { readRegular } from '../../core/disk/regular.ts'
import { isFailure } from '../../core/failure.ts'
import { blocksBelow } from '../../ipld/block-links.ts'
import { carHeader, carSectionBytes } from '../../ipld/car.ts'
import { readNode } from '../../ipld/unixfs.ts'
import { cidOf, nameOf } from './journal.ts'
import { fileBytesOf, storedUpload } from './stored-upload.ts'

export type Salvaged = {
  readonly cid: string
  readonly profile: Profile
  readonly bytes: number
  readonly carBytes: number
}

export type SalvageOptions = {
  readonly folder: string
  /** What is left of the entry. */
  readonly text: string
  /** Of this gateway now: for a root that does not tell its own. */
  readonly profile: Profile
  readonly stores: readonly LocalStore[]
  readonly signal: AbortSignal
}

/** The uploads in the folder that are whole, the largest first. Mostly it is one. */
export async function salvage({ folder, text, profile, stores, signal }: SalvageOptions): Promise<Salvaged[]> {
  const named = namedIn(text)
  const all = await look(folder, signal)
  const own = named.cid && all.keys.has(blockKey(named.cid)) ? { cid: named.cid } : undefined
  const roots = own ? [own] : all.roots
  const whole: Salvaged[] = []
  for (const { cid, spelledV0 } of roots as readonly Root[]) {
    const spelled = spelledV0 === undefined ? profile : spelledV0 ? 'unixfs-v0-2015' : 'unixfs-v1-2025'
    const found = await measure(cid, named.profile ?? spelled, { folder, stores, signal })
    if (found) whole.push(found)
  }
  return whole.sort((one, other) => other.carBytes - one.carBytes)
}

type Root = { readonly cid: CID; readonly spelledV0?: boolean | undefined }

/** A CID that the folder has a block of was not made by the damage. */
function namedIn(text: string): { readonly cid?: CID | undefined; readonly profile?: Profile | undefined } {
  const [, cid] = /"cid":"(b[a-z2-7]+)"/.exec(text) ?? []
  return { cid: parsed(cid), profile: profiles.find((one) => text.includes(`"profile":"${one}"`)) }
}

function parsed(cid: string | undefined): CID | undefined {
  try {
    return cid === undefined ? undefined : CID.parse(cid)
  } catch {
    return undefined
  }
}

const codecsWithLinks = [codec.dagPb, codec.dagCbor, codec.dagJson] as const

/** Each block once, one after another: the bytes of none are kept. */
async function look(folder: string, signal: AbortSignal): Promise<{ keys: ReadonlySet<string>; roots: Root[] }> {
  const keys = new Set(await orIfGone(readdir(folder), []))
  const found = new Map<string, Root>()
  const below = new Set<string>()
  for (const key of keys) {
    signal.throwIfAborted()
    const bytes = await readRegular(join(folder, key), maxBlockBytes).catch(() => undefined)
    if (!bytes || !provesKey(key, bytes)) continue
    const { root, links } = await readAs(key, bytes, keys)
    found.set(key, root)
    for (const link of links) below.add(link)
  }
  return { keys, roots: [...found].flatMap(([key, root]) => (below.has(key) ? [] : [root])) }
}

/** In the codec by which it links to most blocks of the folder; otherwise what its bytes look like. */
async function readAs(
  key: string,
  bytes: Uint8Array,
  keys: ReadonlySet<string>,
): Promise<{ readonly root: Root; readonly links: ReadonlySet<string> }> {
  const digest = decodeDigest(base32.decode(key))
  let best: { cid: CID; links: ReadonlySet<string>; spelledV0?: boolean } | undefined
  for (const code of codecsWithLinks) {
    const cid = CID.createV1(code, digest)
    const below = await blocksBelow({ cid, bytes }, (link) => keys.has(blockKey(link)))
    const links = new Set(below.map(blockKey))
    if (links.size > (best?.links.size ?? 0))
      best = { cid, links, ...(code === codec.dagPb && { spelledV0: below.some(({ version }) => version === 0) }) }
  }
  if (best) return { root: best, links: best.links }
  const pb = CID.createV1(codec.dagPb, digest)
  return { root: { cid: isUnixfs({ cid: pb, bytes }) ? pb : CID.createV1(codec.raw, digest) }, links: new Set() }
}

function isUnixfs({ cid, bytes }: Block): boolean {
  try {
    return bytes.byteLength > 0 && readNode(cid, bytes).unixfs !== undefined
  } catch {
    return false
  }
}

/** Undefined where a block below it is neither in the folder nor in a store. */
async function measure(
  root: CID,
  profile: Profile,
  { folder, stores, signal }: Pick<SalvageOptions, 'folder' | 'stores' | 'signal'>,
): Promise<Salvaged | undefined> {
  const cid = cidOf({ cid: nameOf(root), profile })
  let sections = 0
  let dagBytes = 0
  let fileBytes: number | undefined
  try {
    const upload = storedUpload({ cid, profile, bytes: 0, carBytes: 0, folder, stores })
    for await (const block of upload.blocks(signal)) {
      if (block.cid.equals(cid)) fileBytes = fileBytesOf(block)
      sections += carSectionBytes(block.cid, block.bytes.byteLength)
      dagBytes += block.bytes.byteLength
    }
  } catch (error) {
    if (signal.aborted || !isFailure(error, 'broken')) throw error
    return undefined
  }
  return { cid: nameOf(root), profile, bytes: fileBytes ?? dagBytes, carBytes: carHeader(cid).byteLength + sections }
}
