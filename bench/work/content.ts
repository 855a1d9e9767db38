// The content of the rows: a number of files of one size, or of directories with a number of names,
// always the same. The origin serves it, and the bench requests it.
import { createHash } from 'node:crypto'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { blockKey, codec, hash } from '../../src/core/cid.ts'
import { addFile, type BlockMap, noise } from '../../src/testing/content.ts'
import { addLargeDirectory } from './directory.ts'

export type Content = {
  readonly count: number
  readonly bytes: number
  readonly seed: number
  readonly json?: boolean
  /** The number of names in a directory, without their files. */
  readonly names?: number
}

export type Made = { readonly cid: string; readonly bytes: Uint8Array; readonly blocks: BlockMap }

const oneBlockBytes = 1024 * 1024

export async function made({ count, bytes, seed, json, names }: Content): Promise<Made[]> {
  const files: Made[] = []
  if (names !== undefined) {
    for (let index = 0; index < count; index++) files.push(await directory(names, seed + index))
    return files
  }
  for (let index = 0; index < count; index++) {
    const content = json ? jsonOf(bytes, seed + index) : noise(bytes, seed + index)
    files.push(content.byteLength <= oneBlockBytes ? raw(content) : await file(content))
  }
  return files
}

function raw(bytes: Uint8Array): Made {
  const cid = CID.createV1(codec.raw, createDigest(hash.sha256, createHash('sha256').update(bytes).digest()))
  return { cid: cid.toString(), bytes, blocks: new Map([[blockKey(cid), bytes]]) }
}

async function file(bytes: Uint8Array): Promise<Made> {
  const blocks: BlockMap = new Map()
  const { cid } = await addFile(blocks, bytes, 'v1')
  return { cid: cid.toString(), bytes, blocks }
}

async function directory(names: number, seed: number): Promise<Made> {
  const blocks: BlockMap = new Map()
  const cid = await addLargeDirectory(blocks, names, seed)
  return { cid: cid.toString(), bytes: new Uint8Array(), blocks }
}

function jsonOf(bytes: number, seed: number): Uint8Array {
  const head = `{"name":"a policy","number":${seed},"text":"`
  return Buffer.from(`${head}${'x'.repeat(Math.max(0, bytes - head.length - 2))}"}`)
}
