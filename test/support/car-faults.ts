// The bytes of a CAR, as the programmable upstream sends them: in order, or as a fault has them.
import { hash } from 'node:crypto'
import * as dagCbor from '@ipld/dag-cbor'
import type { CID } from 'multiformats/cid'
import type { Block } from '../../src/core/cid.ts'
import type { Fault } from './upstream.ts'

/** Nothing is sent before the first block is there: a failure to find it is an answer of its own. */
export async function* carOf(
  root: CID,
  blocks: AsyncIterable<Block>,
  fault: Fault | undefined,
): AsyncGenerator<Uint8Array> {
  if (fault?.kind === 'emptyCar') return
  const header = section(dagCbor.encode({ version: 1, roots: [root] }))
  let isFirst = true
  for await (const { cid, bytes } of asSent(blocks, fault)) {
    if (isFirst) yield header
    if (isFirst && fault?.kind === 'foreignBlock') yield* foreignBlocks(fault.count ?? 1)
    isFirst = false
    yield section(cid.bytes, bytes)
  }
  if (isFirst) yield header
}

async function* asSent(blocks: AsyncIterable<Block>, fault: Fault | undefined): AsyncGenerator<Block> {
  if (fault?.kind === 'backwards') return yield* (await Array.fromAsync(blocks)).reverse()
  const times = fault?.kind === 'repeats' ? fault.times : 1
  let index = 0
  for await (const block of blocks) {
    const n = index++
    if (fault?.kind === 'skipBlock' && fault.block === n) continue
    const isWrong = fault?.kind === 'wrongBytes' && fault.block === n
    for (let time = 0; time < times; time++) yield isWrong ? { ...block, bytes: spoiled(block.bytes) } : block
  }
}

export function spoiled(bytes: Uint8Array): Uint8Array {
  const copy = Uint8Array.from(bytes)
  if (copy.byteLength > 0) copy[copy.byteLength >> 1] = (copy[copy.byteLength >> 1] as number) ^ 1
  return copy
}

function section(...parts: Uint8Array[]): Uint8Array {
  const length = parts.reduce((sum, { byteLength }) => sum + byteLength, 0)
  const varint: number[] = []
  let value = length
  while (value >= 0x80) {
    varint.push((value & 0x7f) | 0x80)
    value = Math.floor(value / 128)
  }
  varint.push(value)
  return Buffer.concat([Uint8Array.from(varint), ...parts])
}

const pieceBlocks = 1000
const foreign: Buffer[] = []

/** To hash them costs more than to send them: they are made once, and only as far as somebody reads. */
function* foreignBlocks(count: number): Generator<Uint8Array> {
  for (let from = 0; from < count; from += pieceBlocks) {
    const piece = (foreign[from / pieceBlocks] ??= makeForeign(from))
    yield piece.subarray(0, Math.min(pieceBlocks, count - from) * foreignBytes)
  }
}

/** A CID of version 1, raw, sha2-256. */
const cidHead = Uint8Array.of(0x01, 0x55, 0x12, 0x20)
const digestBytes = 32
const bodyBytes = 8
const foreignBytes = 1 + cidHead.byteLength + digestBytes + bodyBytes

/** Blocks of eight bytes, each right by its own CID. */
function makeForeign(from: number): Buffer {
  const piece = Buffer.alloc(pieceBlocks * foreignBytes)
  for (let n = 0; n < pieceBlocks; n++) {
    const one = piece.subarray(n * foreignBytes, (n + 1) * foreignBytes)
    const body = one.subarray(foreignBytes - bodyBytes)
    body.write('none')
    body.writeUInt32BE(from + n, 4)
    one[0] = foreignBytes - 1
    one.set(cidHead, 1)
    one.set(hash('sha256', body, 'buffer'), 1 + cidHead.byteLength)
  }
  return piece
}
