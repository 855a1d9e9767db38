// For bench/tail.ts, in a process of its own: five upstreams with realistic latencies. The latency
// of an upstream for a file is drawn once from a fixed seed, so all contenders get the same ones.
// Answers each message with the request counts.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { CID } from 'multiformats/cid'
import { carHeader, carSection } from '../src/ipld/car.ts'
import { made } from './work/content.ts'
import { numbers } from './work/zipf.ts'

const [count = '600'] = process.argv.slice(2)
const upstreams = 5
const medianMs = 40
const spread = 0.6
const stallShare = 0.02
const slow = { index: 4, times: 10 }

const files = await made({ count: Number(count), bytes: 4096, seed: 400 })
const byCid = new Map(files.map(({ cid, bytes }, index) => [cid, { index, bytes }]))
const random = numbers(7)
/** Milliseconds by file and upstream; infinite means a stall. */
const waits = files.map(() =>
  Array.from({ length: upstreams }, (_, index) => {
    const normal = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random())
    const ms = medianMs * Math.exp(spread * normal) * (index === slow.index ? slow.times : 1)
    return random() < stallShare ? Number.POSITIVE_INFINITY : ms
  }),
)
let asked = 0

async function listen(index: number): Promise<string> {
  const server = createServer((request, response) => {
    const { pathname, searchParams } = new URL(request.url ?? '/', 'http://upstream')
    const text = pathname.split('/')[2] ?? ''
    const file = byCid.get(text)
    if (!file) return void response.writeHead(404, { 'Content-Length': 0 }).end()
    asked++
    const ms = waits[file.index]?.[index] ?? 0
    if (!Number.isFinite(ms)) return
    const format = searchParams.get('format') ?? /vnd\.ipld\.(raw|car)/.exec(request.headers.accept ?? '')?.[1] ?? 'raw'
    const cid = CID.parse(text)
    const body =
      format === 'car' ? Buffer.concat([carHeader(cid), ...carSection({ cid, bytes: file.bytes })]) : file.bytes
    setTimeout(() => {
      response.writeHead(200, { 'Content-Type': `application/vnd.ipld.${format}`, 'Content-Length': body.byteLength })
      response.end(body)
    }, ms)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

const urls = await Promise.all(Array.from({ length: upstreams }, (_, index) => listen(index)))
process.on('message', () => process.send?.(asked))
process.on('disconnect', () => process.exit())
process.send?.({ urls, cids: files.map(({ cid }) => cid) })
