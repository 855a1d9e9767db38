// Content for tests of backends, made with the ecosystem's own importer: every layout, always the
// same bytes and CIDs.
import { createHash } from 'node:crypto'
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import * as dagPb from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { importer } from 'ipfs-unixfs-importer'
import { fixedSize } from 'ipfs-unixfs-importer/chunker'
import { balanced } from 'ipfs-unixfs-importer/layout'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { blockKey } from '../core/cid.ts'

export type BlockMap = Map<string, Uint8Array>
export type FileFixture = { readonly cid: CID; readonly bytes: Uint8Array }

export const profileOptions = {
  v1: {
    cidVersion: 1,
    rawLeaves: true,
    chunker: fixedSize({ chunkSize: 1024 * 1024 }),
    layout: balanced({ maxChildrenPerNode: 1024 }),
  },
  v0: {
    cidVersion: 0,
    rawLeaves: false,
    chunker: fixedSize({ chunkSize: 256 * 1024 }),
    layout: balanced({ maxChildrenPerNode: 174 }),
  },
} as const
export type ProfileName = keyof typeof profileOptions

/** Reproducible bytes that look random, and are fast to generate. */
export function noise(length: number, seed = 1): Uint8Array {
  const bytes = new Uint8Array(length)
  let state = (seed * 2654435761) >>> 0 || 1
  const words = new Uint32Array(bytes.buffer, 0, length >> 2)
  for (let index = 0; index < words.length; index++) {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    words[index] = state
  }
  for (let index = words.length * 4; index < length; index++) bytes[index] = seed + index
  return bytes
}

const intoMap = (blocks: BlockMap) =>
  ({
    put: async (cid: CID, block: Uint8Array | AsyncIterable<Uint8Array>) => {
      blocks.set(blockKey(cid), block instanceof Uint8Array ? block : Buffer.concat(await Array.fromAsync(block)))
      return cid
    },
  }) as never

export async function addFile(
  blocks: BlockMap,
  bytes: Uint8Array,
  profile: ProfileName = 'v1',
  chunkSize?: number,
): Promise<FileFixture> {
  const content = (async function* () {
    yield bytes
  })()
  for await (const { cid } of importer([{ content }], intoMap(blocks), {
    ...profileOptions[profile],
    ...(chunkSize && { chunker: fixedSize({ chunkSize }) }),
    reduceSingleLeafToSelf: true,
  })) {
    return { cid, bytes }
  }
  throw new Error('the importer made nothing')
}

export async function addDirectory(
  blocks: BlockMap,
  files: Readonly<Record<string, Uint8Array>>,
  options: { sharded?: boolean } = {},
): Promise<CID> {
  const source = Object.entries(files).map(([path, bytes]) => ({
    path: `root/${path}`,
    content: (async function* () {
      yield bytes
    })(),
  }))
  let root: CID | undefined
  for await (const entry of importer(source, intoMap(blocks), {
    ...profileOptions.v1,
    shardSplitThresholdBytes: options.sharded ? 1 : 1e9,
  })) {
    root = entry.cid
  }
  if (!root) throw new Error('the importer made nothing')
  return root
}

const sha256 = (bytes: Uint8Array) => createDigest(0x12, createHash('sha256').update(bytes).digest())

/** Adds a block and returns its CID. */
export function addBlock(blocks: BlockMap, code: number, bytes: Uint8Array): CID {
  const cid = CID.createV1(code, sha256(bytes))
  blocks.set(blockKey(cid), bytes)
  return cid
}

export const addNode = (blocks: BlockMap, node: dagPb.PBNode): CID => addBlock(blocks, dagPb.code, dagPb.encode(node))

export const addCbor = (blocks: BlockMap, value: unknown): CID => addBlock(blocks, dagCbor.code, dagCbor.encode(value))
export const addDagJson = (blocks: BlockMap, value: unknown): CID =>
  addBlock(blocks, dagJson.code, dagJson.encode(value))

export function addSymlink(blocks: BlockMap, target: string): CID {
  const data = new UnixFS({ type: 'symlink', data: new TextEncoder().encode(target) }).marshal()
  return addNode(blocks, { Data: data, Links: [] })
}

export const text = (value: string): Uint8Array => new TextEncoder().encode(value)

/** The chunk size of `deepV0`. */
export const deepChunk = 16 * 1024

/** Makes every layout in one map. */
export async function makeContent() {
  const blocks: BlockMap = new Map()
  const evidence = text(JSON.stringify({ name: 'Evidence', description: 'what happened', fileURI: '/ipfs/bafkqaaa' }))
  const files = {
    hello: await addFile(blocks, text('hello, juror\n')),
    empty: await addFile(blocks, new Uint8Array()),
    json: await addFile(blocks, evidence),
    jsonV0: await addFile(blocks, evidence, 'v0'),
    smallV0: await addFile(blocks, noise(1000, 3), 'v0'),
    chunkedV0: await addFile(blocks, noise(700_000, 4), 'v0'),
    chunkedV1: await addFile(blocks, noise(3_300_000, 5)),
    // Two levels of links, as in a file of 50 MB, in a sixteenth of the bytes.
    deepV0: await addFile(blocks, noise(3_125_000, 6), 'v0', deepChunk),
  }
  const names = {
    'readme.txt': text('read me'),
    'policy.json': text('{"name":"Policy"}'),
    'with space.txt': text('a name with a space'),
    'über/ß.txt': text('unicode'),
    'literal%20percent.txt': text('a name with a percent sign'),
    'sub/deep/file.bin': noise(5000, 7),
    'sub/big.bin': noise(2_500_000, 8),
  }
  const directory = await addDirectory(blocks, names)
  const manyNames = Object.fromEntries(
    Array.from({ length: 1500 }, (_, index) => [`file-${index}.txt`, text(`content ${index}`)]),
  )
  const hamt = await addDirectory(blocks, manyNames, { sharded: true })
  const symlink = addSymlink(blocks, 'hello.txt')
  const linked = addNode(blocks, {
    Data: new UnixFS({ type: 'directory' }).marshal(),
    Links: [{ Name: 'link', Hash: symlink, Tsize: 20 }],
  })
  const cbor = addCbor(blocks, { title: 'a document', inside: { file: files.hello.cid, number: 7 } })
  const dagJsonDocument = addDagJson(blocks, { title: 'a document', file: files.json.cid })
  const identity = CID.createV1(0x55, createDigest(0, text('carried in the CID')))
  return { blocks, files, names, directory, manyNames, hamt, symlink, linked, cbor, dagJson: dagJsonDocument, identity }
}

/**
 * The content of an upstream under test: files, directories and documents of every layout, and
 * their blocks by key.
 */
export type Content = Awaited<ReturnType<typeof makeContent>>
