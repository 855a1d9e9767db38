// The origin of the bench, in a process of its own, whose cost is not charged to a contender:
// serves the content as one block, as a CAR, or as the file.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { CID } from 'multiformats/cid'
import { blockKey, codec } from '../../src/core/cid.ts'
import { linksOf } from '../../src/ipld/block-links.ts'
import { carHeader, carSection } from '../../src/ipld/car.ts'
import { type Content, made } from './content.ts'

const contents = JSON.parse(process.argv[2] ?? '[]') as Content[]
const files = (await Promise.all(contents.map(made))).flat()
const wholes = new Map(files.map(({ cid, bytes }) => [cid, bytes]))
const blocks = new Map(files.flatMap(({ blocks }) => [...blocks]))

function* dag(root: CID): Generator<Uint8Array> {
  const bytes = blocks.get(blockKey(root))
  if (!bytes) return
  yield* carSection({ cid: root, bytes })
  if (root.code !== codec.raw) for (const link of linksOf({ cid: root, bytes })) yield* dag(link)
}

const server = createServer((request, response) => {
  const { pathname, searchParams } = new URL(request.url ?? '/', 'http://origin')
  const [, , text = ''] = pathname.split('/')
  const format = searchParams.get('format') ?? /vnd\.ipld\.(raw|car)/.exec(request.headers.accept ?? '')?.[1]
  const whole = wholes.get(text)
  const answer = (type: string, body: Uint8Array) => {
    response.writeHead(200, { 'Content-Type': type, 'Content-Length': body.byteLength })
    response.end(body)
  }
  if (format === undefined && whole) return answer('application/octet-stream', whole)
  const root = text === '' ? undefined : CID.parse(text)
  const block = root && blocks.get(blockKey(root))
  if (!root || !block) return void response.writeHead(404, { 'Content-Length': 0 }).end()
  if (format === 'raw') return answer('application/vnd.ipld.raw', block)
  response.writeHead(200, { 'Content-Type': 'application/vnd.ipld.car; version=1' })
  response.write(carHeader(root))
  const pieces = dag(root)
  const more = (): void => {
    // Not `for … of`, which closes the generator: the CAR would end after its first block.
    for (let next = pieces.next(); !next.done; next = pieces.next())
      if (!response.write(next.value)) return void response.once('drain', more)
    response.end()
  }
  more()
})
server.listen(0, '127.0.0.1', () =>
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`),
)
process.once('SIGTERM', () => process.exit(0))
