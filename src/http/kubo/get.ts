// `get`: a file or a directory as a tar, packed while it is read, or one compressed file.
import type { Entity } from '../../content/entity.ts'
import { readFile } from '../../content/file.ts'
import { refuseRemainder } from '../../content/formats/format.ts'
import { archiveOf } from '../../content/formats/tar.ts'
import { resolve } from '../../content/resolve.ts'
import { codec } from '../../core/cid.ts'
import type { Session } from '../../retrieval/session.ts'
import { argOf, badCall, isOn, type KuboCall, optionsIn, pathOf } from './call.ts'
import { gzipped } from './gzipped.ts'
import { numberOf } from './options.ts'
import { sendTold } from './stream.ts'

export async function getArchive(call: KuboCall): Promise<void> {
  const { query, session, response } = call
  const given = optionsIn(query, { o: 'output', a: 'archive', C: 'compress', l: 'compression-level', p: 'progress' })
  const [isArchive, isCompressed] = [isOn(given, 'archive', false), isOn(given, 'compress', false)]
  const level = numberOf(given, 'compression-level') ?? -1
  if (isCompressed && level !== -1 && (level < 1 || level > 9))
    throw badCall(`compression-level=${level} is not from 1 to 9`)
  const arg = argOf(query)
  const path = pathOf(arg)
  const resolution = await resolve(session, path, { scope: 'all' })
  refuseRemainder(resolution)
  const { entity, way } = resolution
  if (entity.kind === 'data') throw badCall(`${entity.cid} is neither a file nor a directory`)
  const isAlone = isCompressed && !isArchive
  if (isAlone && entity.kind !== 'file') throw badCall(`a ${entity.kind} is compressed with archive=true`)
  const name = path.segments.at(-1) ?? (arg.split('/')[0] as string)
  const pieces = isAlone ? readFile(session, entity) : archiveOf(session, entity, { top: name, way, isBare: true })
  response.setHeader('Content-Type', isCompressed ? 'application/gzip' : 'application/x-tar')
  response.setHeader('X-Stream-Output', '1')
  response.setHeader('X-Content-Length', await sizeOf(session, entity))
  await sendTold(call, isCompressed ? gzipped(pieces, level) : pieces)
}

/** The size of a directory as its links declare it, for the progress bar of clients. */
async function sizeOf({ readNode, giveWay }: Session, { cid, block, kind, size }: Entity): Promise<number> {
  if (kind !== 'directory' || cid.code !== codec.dagPb) return size ?? 0
  let sum = block.byteLength
  for (const { Tsize } of readNode(cid, block).links) {
    sum += Tsize ?? 0
    const turn = giveWay()
    if (turn !== undefined) await turn
  }
  return sum
}
