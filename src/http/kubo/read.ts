// `cat`, `block/get` and `dag/export`: content as Kubo's clients request it.

import { createGzip } from 'node:zlib'
import { walkWhole } from '../../content/dag/walk.ts'
import { readFile } from '../../content/file.ts'
import { archiveOf } from '../../content/formats/tar.ts'
import { type Entity, parseRoot, refuseRemainder, resolve } from '../../content/resolve.ts'
import { codec } from '../../core/cid.ts'
import { malformed } from '../../core/failure.ts'
import { writeCar } from '../../ipld/car.ts'
import type { Session } from '../../retrieval/session.ts'
import { type GivenOptions, isOn, optionsIn } from '../add/add.ts'
import { codedPieces } from '../compression.ts'
import { argOf, type KuboCall, numberOf, pathOf, sendPieces, sendWithTrailer } from './call.ts'

export async function readPath({ query, session, response, deps }: KuboCall): Promise<void> {
  const { entity } = await resolve(session, pathOf(argOf(query)))
  if (entity.kind === 'directory') throw malformed('this dag node is a directory')
  // As in Kubo, also if the path ends at a value in a document.
  if (entity.kind === 'data') throw malformed(`unknown node type: ${entity.cid} is not a file; block/get reads it`)
  const given = optionsIn(query, { o: 'offset', l: 'length' })
  const from = wholeNumber(given, 'offset') ?? 0
  const length = wholeNumber(given, 'length')
  const size = entity.size ?? 0
  const bytes = readFile(
    session,
    entity,
    Math.min(from, size),
    length === undefined ? size : Math.min(size, from + length),
  )
  response.setHeader('Content-Type', 'text/plain')
  response.setHeader('X-Stream-Output', '1')
  response.setHeader('X-Content-Length', size)
  await sendPieces({ response, session, deps }, bytes)
}

export async function getBlock({ query, session, response, deps }: KuboCall): Promise<void> {
  const cid = parseRoot(argOf(query))
  const bytes = await session.get(cid)
  response.setHeader('Content-Type', 'application/vnd.ipld.raw')
  response.setHeader('X-Stream-Output', '1')
  await sendPieces({ response, session, deps }, [bytes])
}

export async function exportDag({ query, session, response, deps }: KuboCall): Promise<void> {
  const cid = parseRoot(argOf(query))
  const bytes = await session.get(cid, { cid, segments: [], scope: 'all' })
  response.setHeader('Content-Type', 'application/vnd.ipld.car; version=1')
  response.setHeader('X-Stream-Output', '1')
  await sendPieces({ response, session, deps }, writeCar(cid, walkWhole(session, { cid, bytes })))
}

function wholeNumber(given: GivenOptions, name: string): number | undefined {
  const value = numberOf(given, name)
  if (value !== undefined && value < 0) throw malformed(`${name} is a number of bytes`)
  return value
}

export async function getArchive(call: KuboCall): Promise<void> {
  const { query, session, response } = call
  const given = optionsIn(query, { o: 'output', a: 'archive', C: 'compress', l: 'compression-level', p: 'progress' })
  const [isArchive, isCompressed] = [isOn(given, 'archive'), isOn(given, 'compress')]
  const level = numberOf(given, 'compression-level') ?? -1
  if (isCompressed && level !== -1 && (level < 1 || level > 9))
    throw malformed(`compression-level=${level} is not from 1 to 9`)
  const arg = argOf(query)
  const path = pathOf(arg)
  const resolution = await resolve(session, path, { scope: 'all' })
  refuseRemainder(resolution)
  const { entity, chain } = resolution
  if (entity.kind === 'data') throw malformed(`${entity.cid} is neither a file nor a directory`)
  const isAlone = isCompressed && !isArchive
  if (isAlone && entity.kind !== 'file') throw malformed(`a ${entity.kind} is compressed with archive=true`)
  const name = path.segments.at(-1) ?? (arg.split('/')[0] as string)
  const pieces = isAlone ? readFile(session, entity) : archiveOf(session, entity, { top: name, chain, isBare: true })
  response.setHeader('Content-Type', isCompressed ? 'application/gzip' : 'application/x-tar')
  response.setHeader('X-Stream-Output', '1')
  response.setHeader('X-Content-Length', await sizeOf(session, entity))
  await sendWithTrailer(call, isCompressed ? gzipped(pieces, level) : pieces)
}

/** The size of a directory as its links declare it, for the progress bar of clients. */
async function sizeOf({ readNode, yieldIfDue }: Session, { cid, block, kind, size }: Entity): Promise<number> {
  if (kind !== 'directory' || cid.code !== codec.dagPb) return size ?? 0
  let sum = block.byteLength
  for (const { Tsize } of readNode(cid, block).links) {
    sum += Tsize ?? 0
    const due = yieldIfDue()
    if (due !== undefined) await due
  }
  return sum
}

export const gzipped = (pieces: AsyncIterable<Uint8Array>, level: number): AsyncGenerator<Uint8Array> =>
  codedPieces(pieces, createGzip({ level }))[Symbol.asyncIterator]()
