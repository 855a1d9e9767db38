// `cat`, `block/get` and `dag/export`: content as Kubo's clients request it.
import { walkDag } from '../../content/dag/walk.ts'
import { readFile } from '../../content/file.ts'
import { parseRoot } from '../../content/path.ts'
import { resolve } from '../../content/resolve.ts'
import { wayFrom } from '../../content/way.ts'
import { writeCar } from '../../ipld/car.ts'
import { argOf, badCall, type GivenOptions, type KuboCall, optionsIn, pathOf } from './call.ts'
import { sendPieces } from './stream.ts'

export async function readPath({ query, session, response, deps }: KuboCall): Promise<void> {
  const { entity } = await resolve(session, pathOf(argOf(query)))
  if (entity.kind === 'directory') throw badCall('this dag node is a directory')
  // As in Kubo, also if the path ends at a value in a document.
  if (entity.kind === 'data') throw badCall(`unknown node type: ${entity.cid} is not a file; block/get reads it`)
  const given = optionsIn(query, { o: 'offset', l: 'length' })
  const from = numberOf(given, 'offset') ?? 0
  const length = numberOf(given, 'length')
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
  const blocks = walkDag(session, { cid, bytes }, { scope: 'all', dups: false, way: wayFrom(cid) })
  response.setHeader('Content-Type', 'application/vnd.ipld.car; version=1')
  response.setHeader('X-Stream-Output', '1')
  await sendPieces({ response, session, deps }, writeCar(cid, blocks))
}

function numberOf(given: GivenOptions, name: string): number | undefined {
  const text = given.get(name)
  if (text === undefined) return undefined
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 0) throw badCall(`${name} is a number of bytes`)
  return value
}
