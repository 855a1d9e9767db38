// `ls`: the links of directories and files with their targets, in Kubo's format.
import type { CID } from 'multiformats/cid'
import { linksOfDirectory } from '../../content/directory.ts'
import {
  type ContentPath,
  type Entity,
  entityOf,
  type PathChain,
  refuseRemainder,
  resolve,
  symlinkTarget,
  visitBelow,
} from '../../content/resolve.ts'
import { codec } from '../../core/cid.ts'
import { isFailure, malformed } from '../../core/failure.ts'
import { lazyLinksInOrder } from '../../ipld/block-links.ts'
import { modeOf, type Node } from '../../ipld/unixfs.ts'
import type { DagWant, Session } from '../../retrieval/session.ts'
import { isOn, optionsIn } from '../add/add.ts'
import { argsOf, type KuboCall, pathOf, sendJson, sendLines, spellingIn } from './call.ts'

type Link = {
  readonly Name: string
  readonly Hash: string
  readonly Size: number
  readonly Type: number
  readonly Target: string
  readonly Mode: number
  readonly ModTime: string
}

/** The path as sent and parsed. */
type Asked = { readonly Hash: string; readonly path: ContentPath }

type Named = { readonly name: string; readonly cid: CID; readonly size: number | undefined }

type Listing = {
  readonly session: Session
  readonly spelled: (cid: CID) => string
  /** Reads the linked blocks. */
  readonly looks: boolean
}

// The concurrency of reads from a slow tier, as in an HTML listing.
const typeLookupsAhead = 15
const maxListed = 100_000
const kinds = { data: 0, directory: 1, file: 2, symlink: 4 } as const
const never = '0001-01-01T00:00:00Z'

export async function listLinks(call: KuboCall): Promise<void> {
  const { query, session } = call
  const given = optionsIn(query, { v: 'headers', s: 'stream', l: 'long' })
  // As in Kubo, either option enables both.
  const looks = isOn(given, 'resolve-type', true) || isOn(given, 'size', true)
  const listing = { session, spelled: spellingIn(given), looks }
  const isStream = isOn(given, 'stream')
  // Parses all arguments before the first is listed, so that a malformed one is an error status.
  const paths = argsOf(query).map(pathOf)
  const asked = query.getAll('arg').map((Hash, index) => ({ Hash, path: paths[index] as ContentPath }))
  if (isStream) return sendLines(call, lines(asked, listing))
  const Objects: { Hash: string; Links: Link[] }[] = []
  let count = 0
  for (const { Hash, path } of asked) {
    const Links: Link[] = []
    for await (const link of linksBehind(path, listing)) {
      if (++count > maxListed) throw malformed(`there are more than ${maxListed} links; ask with stream=true`)
      Links.push(link)
    }
    Objects.push({ Hash, Links: sorted(Links) })
  }
  sendJson(call, { Objects })
}

async function* lines(all: readonly Asked[], listing: Listing): AsyncGenerator<unknown> {
  for (const { Hash, path } of all)
    for await (const link of linksBehind(path, listing)) yield { Objects: [{ Hash, Links: [link] }] }
}

/** Sorts by the bytes of the names, as Go does. */
function sorted(links: readonly Link[]): Link[] {
  const keyed = links.map((link) => ({ link, key: Buffer.from(link.Name) }))
  return keyed.sort((one, other) => Buffer.compare(one.key, other.key)).map(({ link }) => link)
}

async function* linksBehind(path: ContentPath, listing: Listing): AsyncGenerator<Link> {
  const { session } = listing
  const resolution = await resolve(session, path)
  refuseRemainder(resolution)
  // From here each block has its own deadline, since a directory may have many entries.
  session.begun()
  const { entity, chain } = resolution
  const waiting: Promise<Link>[] = []
  for await (const named of namedIn(session, entity)) {
    const link = linkOf(named, entity, chain, listing)
    link.catch(() => {})
    waiting.push(link)
    if (waiting.length > typeLookupsAhead) yield (await waiting.shift()) as Link
  }
  for (const link of waiting) yield await link
}

async function* namedIn(session: Session, { cid, block }: Entity): AsyncGenerator<Named> {
  const around: DagWant = { cid, segments: [], scope: 'entity' }
  if (cid.code === codec.dagPb) yield* linksOfDirectory(session, { cid, bytes: block }, around)
  else
    for (const { Hash } of await lazyLinksInOrder({ cid, bytes: block })) yield { name: '', cid: Hash, size: undefined }
}

async function linkOf({ name, cid, size }: Named, above: Entity, chain: PathChain, listing: Listing): Promise<Link> {
  const plain = { Name: name, Hash: listing.spelled(cid), Size: 0, Type: 0, Target: '', Mode: 0, ModTime: never }
  if (cid.code === codec.raw) return { ...plain, Size: size ?? 0, Type: kinds.file }
  if (cid.code !== codec.dagPb || !listing.looks) return plain
  const block = await blockBehind(
    listing.session,
    cid,
    above.kind === 'directory' ? { cid, names: [name], above: chain } : undefined,
  )
  if (!block) return plain
  const node = listing.session.readOnce(cid, block)
  const entity = entityOf(cid, block, () => node)
  return {
    ...plain,
    Size: entity.size ?? 0,
    Type: kinds[entity.kind],
    Target: entity.kind === 'symlink' ? Buffer.from(symlinkTarget(entity)).toString() : '',
    ...stored(node, entity),
  }
}

/** Undefined if the block is denied: only its name may be shown. */
async function blockBehind(session: Session, cid: CID, chain: PathChain | undefined): Promise<Uint8Array | undefined> {
  try {
    if (chain) visitBelow(session, chain)
    return await session.get(cid)
  } catch (error) {
    if (isFailure(error, 'denied')) return undefined
    throw error
  }
}

const ofDirectory = 0x8000_0000
const ofSymlink = 0x0800_0000

/** Mode and time if they are stored, in Go's format. */
function stored({ data, unixfs }: Node, { kind }: Entity): Pick<Link, 'Mode' | 'ModTime'> | undefined {
  if (!data || !unixfs) return undefined
  const mode = modeOf(data)
  const special = kind === 'directory' ? ofDirectory : kind === 'symlink' ? ofSymlink : 0
  return { Mode: mode === undefined ? 0 : goMode(mode) + special, ModTime: goTime(unixfs.mtime) }
}

/** Go's bits for setuid, setgid and sticky differ from POSIX. */
const goMode = (mode: number): number =>
  (mode & 0o777) + (mode & 0o4000 && 1 << 23) + (mode & 0o2000 && 1 << 22) + (mode & 0o1000 && 1 << 20)

function goTime(mtime: { readonly secs: bigint; readonly nsecs?: number | undefined } | undefined): string {
  if (!mtime) return never
  const at = new Date(Number(mtime.secs) * 1000)
  const year = at.getUTCFullYear()
  if (!(year >= 0 && year <= 9999)) return never
  const fraction = String(mtime.nsecs ?? 0)
    .padStart(9, '0')
    .replace(/0+$/, '')
  return at.toISOString().replace('.000Z', `${fraction === '' ? '' : `.${fraction}`}Z`)
}
