// `block/put`: every part is a block, which is stored together with everything it links to, or not
// at all.
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { walkDag } from '../../content/dag/walk.ts'
import { pathChainFrom } from '../../content/resolve.ts'
import { type Block, codec, digestBy, hash, hashCode } from '../../core/cid.ts'
import { Failure, type FailureKind, isFailure, malformed } from '../../core/failure.ts'
import { lazyLinksInOrder } from '../../ipld/block-links.ts'
import type { Session } from '../../retrieval/session.ts'
import { checkFile, receiveFiles } from './add.ts'
import {
  type GivenOptions,
  type KuboCall,
  notDone,
  numberOf,
  optionsIn,
  refuseOn,
  sendJson,
  spellingIn,
} from './call.ts'

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
    yield* walkDag(session, root, { scope: 'all', dups: false, chain: pathChainFrom(root.cid) })
  } catch (error) {
    if (!isFailure(error) || !notHere.has(error.kind)) throw error
    const said = `${error.message}; block ${root.cid} is stored with everything it links to: put that first, or import a CAR (dag/import)`
    throw new Failure(error.kind, said, { source: error.source, cause: error })
  }
}

const notHere: ReadonlySet<FailureKind> = new Set<FailureKind>(['not-found', 'timeout', 'unavailable'])
