// `cat`, `block/get` and `dag/export`: content as Kubo's clients ask for it.
import { walkDag } from '../../content/dag/walk.ts'
import { readFile } from '../../content/file.ts'
import { parsePath, parseRoot } from '../../content/path.ts'
import { resolve } from '../../content/resolve.ts'
import { wayFrom } from '../../content/way.ts'
import { writeCar } from '../../ipld/car.ts'
import { writeAll } from '../wire/write.ts'
import { argOf, badCall, type GivenOptions, type KuboCall, optionsIn } from './call.ts'

export async function readPath({ query, session, response, deps }: KuboCall): Promise<void> {
  const { entity } = await resolve(session, parsePath(escaped(argOf(query))))
  if (entity.kind === 'directory') throw badCall('this dag node is a directory')
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
  await send({ response, session, deps }, bytes)
}

export async function getBlock({ query, session, response, deps }: KuboCall): Promise<void> {
  const cid = parseRoot(argOf(query))
  const bytes = await session.get(cid)
  response.setHeader('Content-Type', 'application/vnd.ipld.raw')
  response.setHeader('X-Stream-Output', '1')
  await send({ response, session, deps }, [bytes])
}

export async function exportDag({ query, session, response, deps }: KuboCall): Promise<void> {
  const cid = parseRoot(argOf(query))
  const bytes = await session.get(cid, { cid, segments: [], scope: 'all' })
  const blocks = walkDag(session, { cid, bytes }, { scope: 'all', dups: false, way: wayFrom(cid) })
  response.setHeader('Content-Type', 'application/vnd.ipld.car; version=1')
  response.setHeader('X-Stream-Output', '1')
  await send({ response, session, deps }, writeCar(cid, blocks))
}

/** The first piece is read before the headers go out: until then a failure can still be an error status. */
async function send(
  { response, session, deps }: Pick<KuboCall, 'response' | 'session' | 'deps'>,
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): Promise<void> {
  async function* begun() {
    let isFirst = true
    for await (const piece of pieces) {
      if (isFirst) session.begun()
      isFirst = false
      yield piece
    }
  }
  await writeAll(response, begun(), deps)
}

/** Kubo's arguments are plain text; a path is percent-encoded. */
const escaped = (path: string): string =>
  path
    .split('/')
    .map((segment) => encodeURIComponent(segment))
    .join('/')

function numberOf(given: GivenOptions, name: string): number | undefined {
  const text = given.get(name)
  if (text === undefined) return undefined
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 0) throw badCall(`${name} is a number of bytes`)
  return value
}
