// Uploads by Kubo's RPC. `add`: every part is a file, or all of them are one directory; a part that
// Kubo would treat differently (a symlink, a directory among files) is refused, not added as a file.
// `dag/import`: every part is a CAR. `block/put`: every part is a block, which is stored together
// with everything it links to, or not at all.

import { posix } from 'node:path'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { type Shape, shapes } from '../../../backends/pinning/contract.ts'
import { walkWhole } from '../../content/dag/walk.ts'
import { type Block, codec, digestBy, hash, hashCode } from '../../core/cid.ts'
import { Failure, type FailureKind, isFailure, malformed } from '../../core/failure.ts'
import { decoded } from '../../core/wire/http.ts'
import { lazyLinksInOrder } from '../../ipld/block-links.ts'
import type { Session } from '../../retrieval/session.ts'
import type { PartName } from '../../upload/receive.ts'
import type { Added, AddOptions } from '../../upload/uploads.ts'
import { type GivenOptions, isOn, optionsIn, pinName, receiveUpload } from '../add/add.ts'
import { type KuboCall, notDone, numberOf, refuseOn, refuseOthers, sendJson, spellingIn } from './call.ts'

/** The profile of a Kubo with default settings: the old one. */
const kubos = shapes['unixfs-v0-2015']

// Smaller chunks cost too much: each is a stored block with a link in a parent node.
const minChunkBytes = 16 * 1024
// Kubo's limit: a block of 2 MiB without the overhead of a node.
const maxChunkBytes = 2 * 1024 * 1024 - 256
const minLinks = 2
const maxLinks = 8192

const aliasesOfAdd: Readonly<Record<string, string>> = {
  n: 'only-hash',
  w: 'wrap-with-directory',
  r: 'recursive',
  s: 'chunker',
  t: 'trickle',
  enc: 'encoding',
}

/** Booleans for which only false is supported. */
const offInAdd: Readonly<Record<string, string>> = {
  trickle: 'files are laid out balanced',
  inline: 'small blocks are stored as any other',
  nocopy: 'files are copied',
  'preserve-mode': 'files have no mode here',
  'preserve-mtime': 'files have no modification time here',
}

/** Refused with any value. */
const never: Readonly<Record<string, string>> = {
  mode: 'files have no mode here',
  mtime: 'files have no modification time here',
  'mtime-nsecs': 'files have no modification time here',
  'to-files': 'MFS is not supported',
}

/** The only supported values; empty counts as absent. */
const onlyInAdd: Readonly<Record<string, readonly string[]>> = {
  hash: ['sha2-256'],
  'max-directory-links': ['0'],
  'max-hamt-fanout': ['256'],
}

export async function addFiles(call: KuboCall): Promise<void> {
  const { query, response } = call
  const given = optionsIn(query, aliasesOfAdd)
  refuseOn(given, offInAdd)
  for (const [name, why] of Object.entries(never)) if (given.get(name)) throw notDone(name, why)
  refuseOthers(given, onlyInAdd)
  const shape = shapeOf(given)
  const spelled = spellingIn(given)
  const isSilent = isOn(given, 'silent')
  const isWrapped = isOn(given, 'wrap-with-directory')
  const isOneDirectory = isWrapped || isOn(given, 'recursive')
  const added = await receiveFiles(call, {
    kind: isOneDirectory ? 'directory' : 'files',
    checkPart: isOneDirectory ? checkType : checkPart,
    ...(isOneDirectory && { directory: { pathOf, isBare: !isWrapped } }),
    isOnlyHashed: isOn(given, 'only-hash'),
    name: pinName(given.get('pin-name')),
    ...(shape && { shape }),
  })
  const lines = added.map(({ cid, dagBytes, fileName }) => {
    const Hash = spelled(cid)
    return { Name: isOneDirectory ? fileName : nameOf(fileName) || Hash, Hash, Size: String(dagBytes) }
  })
  response.setHeader('X-Chunked-Output', '1')
  sendJson(call, ...(isSilent ? [] : lines))
}

/** Missing options have Kubo's defaults. Without any option the operator's profile applies. */
function shapeOf(given: GivenOptions): Shape | undefined {
  const chunker = given.get('chunker')
  if (!chunker && !['cid-version', 'raw-leaves', 'max-file-links'].some((name) => given.has(name))) return undefined
  const cidVersion = numberOf(given, 'cid-version') ?? kubos.cidVersion
  if (cidVersion !== 0 && cidVersion !== 1) throw malformed(`cid-version=${cidVersion} is not 0 or 1`)
  const width = numberOf(given, 'max-file-links') ?? kubos.width
  if (width < minLinks || width > maxLinks)
    throw malformed(`max-file-links=${width} is not from ${minLinks} to ${maxLinks}`)
  return {
    cidVersion,
    isRaw: isOn(given, 'raw-leaves', cidVersion === 1),
    chunkBytes: chunker ? chunkBytesOf(chunker) : kubos.chunkBytes,
    width,
    directorySize: kubos.directorySize,
  }
}

function chunkBytesOf(chunker: string): number {
  if (chunker === 'default') return kubos.chunkBytes
  const bytes = Number(/^size-(\d{1,9})$/.exec(chunker)?.[1])
  if (bytes >= minChunkBytes && bytes <= maxChunkBytes) return bytes
  throw notDone(`chunker=${chunker}`, `it is size-N, with N from ${minChunkBytes} to ${maxChunkBytes}`)
}

/** A mode or time in a part's name matters only with `preserve-*`, which is refused. */
function checkPart({ fileName, type }: PartName): void {
  if (/^application\/x-directory\b/i.test(type))
    throw malformed('a directory needs recursive=true or wrap-with-directory=true')
  checkType({ type })
  if (nameOf(fileName).includes('/'))
    throw malformed('a file in a directory needs recursive=true or wrap-with-directory=true')
}

function checkType({ type }: Pick<PartName, 'type'>): void {
  if (/^application\/symlink\b/i.test(type))
    throw malformed('symbolic links are not supported: add the file that it points to')
}

/** Normalizes the path as Kubo does; one that leads upwards is kept, and refused later. */
function pathOf({ fileName = '' }: PartName): string {
  const path = unescaped(fileName)
  return path.split('/').includes('..') ? path : nameOf(fileName)
}

/** Only echoed to the client. */
function nameOf(fileName: string | undefined): string {
  if (fileName === undefined) return ''
  return posix.normalize(`/${unescaped(fileName)}`).replace(/^\/|\/$/g, '')
}

/** As in Kubo, a name that cannot be decoded is kept as it is. */
const unescaped = (fileName: string): string => decoded(fileName.replaceAll('+', ' ')) ?? fileName

const offInImport: Readonly<Record<string, string>> = {
  'local-only': 'a root is stored completely or not at all',
  'allow-big-block': 'a block has 2 MiB at most',
}

export async function importCars(call: KuboCall): Promise<void> {
  const { query, response } = call
  const given = optionsIn(query)
  refuseOn(given, offInImport)
  const spelled = spellingIn(given)
  // Everything is pinned, as with `add`; the option only controls the response.
  const tellsRoots = isOn(given, 'pin-roots', true)
  const tellsStats = isOn(given, 'stats')
  const stats = { BlockCount: 0, BlockBytesCount: 0 }
  const added = await receiveFiles(call, {
    kind: 'cars',
    checkPart: checkFile,
    onCarBlock({ bytes }) {
      stats.BlockCount++
      stats.BlockBytesCount += bytes.byteLength
    },
  })
  const roots = new Set(tellsRoots ? added.map(({ cid }) => spelled(cid)) : [])
  const lines = [...roots].map((root) => ({ Root: { Cid: { '/': root }, PinErrorMsg: '' } }))
  response.setHeader('X-Chunked-Output', '1')
  sendJson(call, ...lines, ...(tellsStats ? [{ Stats: stats }] : []))
}

/** Refuses parts that are not files. */
function checkFile({ type }: PartName): void {
  const kind = /^application\/(x-directory|symlink)\b/i.exec(type)?.[1]
  if (kind)
    throw malformed(`only files are taken here: ${kind === 'symlink' ? 'a symbolic link' : 'a directory'} is none`)
}

/** Every part counts, whatever its name: clients of Kubo call them `file`, `data` or `path`. */
const receiveFiles = (call: KuboCall, options: Omit<AddOptions, 'parts' | 'slot'>): Promise<Added[]> =>
  receiveUpload(call, call.deps, { ...options, parts: 'every' })

const codecs: Readonly<Record<string, number>> = {
  raw: codec.raw,
  'dag-pb': codec.dagPb,
  'dag-cbor': codec.dagCbor,
  'dag-json': codec.dagJson,
  cbor: codec.cbor,
  json: codec.json,
}

/** Legacy values of `format`. */
const legacy: Readonly<Record<string, string>> = { v0: 'dag-pb', protobuf: 'dag-pb', cbor: 'dag-cbor' }

export async function putBlocks(call: KuboCall): Promise<void> {
  const { query, response, session } = call
  const given = optionsIn(query, { f: 'format' })
  refuseOn(given, { 'allow-big-block': 'a block has 2 MiB at most' })
  const cidOf = cidMaker(given)
  const spelled = spellingIn(given)
  const sizes = new Map<string, number>()
  const added = await receiveFiles(call, {
    checkPart: checkFile,
    blocks: {
      async cidOf(bytes) {
        const cid = cidOf(bytes)
        await readLinks({ cid, bytes })
        sizes.set(cid.toString(), bytes.byteLength)
        return cid
      },
      dagOf: (root) => dagOf(session, root),
    },
  })
  response.setHeader('X-Chunked-Output', '1')
  sendJson(call, ...added.map(({ cid }) => ({ Key: spelled(cid), Size: sizes.get(cid.toString()) })))
}

function cidMaker(given: GivenOptions): (bytes: Uint8Array) => CID {
  const format = given.get('format')
  const [option, value] = format
    ? (['format', format] as const)
    : (['cid-codec', given.get('cid-codec') || 'raw'] as const)
  const name = format && Object.hasOwn(legacy, format) ? (legacy[format] as string) : value
  const code = Object.hasOwn(codecs, name) ? codecs[name] : undefined
  if (code === undefined)
    throw notDone(
      `${option}=${value}`,
      `it is ${Object.keys(codecs).join(', ')}, since the links of others cannot be known`,
    )
  const hashName = given.get('mhtype') || 'sha2-256'
  const function_ = hashCode(hashName)
  if (function_ === undefined)
    throw notDone(`mhtype=${hashName}`, 'supported are those of Kubo except sha1, such as sha2-256, sha3-256 or blake3')
  if (format === 'v0' && function_ !== hash.sha256) throw malformed('format=v0 requires mhtype=sha2-256')
  const digest = (bytes: Uint8Array) => createDigest(function_, digestBy(function_, bytes) as Uint8Array)
  const length = numberOf(given, 'mhlen') ?? -1
  if (length !== -1 && length !== digest(new Uint8Array()).size)
    throw notDone(`mhlen=${length}`, 'a digest that was cut proves nothing')
  return (bytes) => (format === 'v0' ? CID.createV0(digest(bytes) as never) : CID.createV1(code, digest(bytes)))
}

/** Throws for a block whose links cannot be read, since its DAG would be unknown. */
async function readLinks(block: Block): Promise<void> {
  try {
    await lazyLinksInOrder(block)
  } catch (error) {
    throw isFailure(error, 'malformed') ? malformed(error.message) : error
  }
}

/** The linked blocks are in the tiers already, or at an upstream. */
async function* dagOf(session: Session, root: Block): AsyncGenerator<Block> {
  session.pass(root.cid, [])
  session.begun()
  try {
    yield* walkWhole(session, root)
  } catch (error) {
    if (!isFailure(error) || !notHere.has(error.kind)) throw error
    const said = `${error.message}; block ${root.cid} is stored with everything it links to: put that first, or import a CAR (dag/import)`
    throw new Failure(error.kind, said, { source: error.source, cause: error })
  }
}

const notHere: ReadonlySet<FailureKind> = new Set<FailureKind>(['not-found', 'timeout', 'unavailable'])
