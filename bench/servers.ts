// The servers that are compared, one to a process: `bare` is node:http and nothing else, `cidgate` is the whole gateway
// with the answer hot. Both write the same headers and the same bytes.
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer, get, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { createLog } from '../src/core/log.ts'
import { createGateway, type Gateway, parseConfig } from '../src/gateway.ts'
import { serve } from '../src/server/serve.ts'

const [which = 'cidgate', bytesText = '1024'] = process.argv.slice(2)
const json = JSON.stringify({ name: 'a policy', text: 'x'.repeat(Math.max(0, Number(bytesText) - 32)) })

// An identity CID is its own content, up to 128 bytes; larger content goes through a denylist-free gateway as a plain file.
const data = await mkdtemp(join(tmpdir(), 'cidgate-bench-'))
const { createHash } = await import('node:crypto')
const bytes = Buffer.from(json)
const cid = CID.createV1(0x55, createDigest(0x12, createHash('sha256').update(bytes).digest()))

const upstream = createServer((_request, response) => {
  response.writeHead(200, { 'content-type': 'application/vnd.ipld.raw', 'content-length': bytes.byteLength })
  response.end(bytes)
})
await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve))
const config = parseConfig({
  listen: '127.0.0.1:0',
  data,
  admin: false,
  log: { level: 'error' },
  retrieval: { probeEvery: 0, upstreams: [{ url: `http://127.0.0.1:${(upstream.address() as AddressInfo).port}` }] },
  cache: { tiers: [{ use: 'memory', maxBytes: '16MiB' }] },
})

/** What the gateway answers when it is hot: the bare server writes exactly that. */
async function hotHeaders(port: number): Promise<string[]> {
  for (let count = 0; count < 2; count++) {
    const headers = await new Promise<string[]>((resolve, reject) => {
      get({ port, host: '127.0.0.1', path: `/ipfs/${cid}` }, (response) => {
        response.resume().on('end', () => resolve(response.rawHeaders))
      }).on('error', reject)
    })
    if (count === 1) return headers
  }
  return []
}

const listen = (handler: RequestListener): Promise<number> => {
  const server = createServer(handler)
  server.maxRequestsPerSocket = 1000 // as the gateway has it
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve((server.address() as AddressInfo).port)))
}

// As `npm start` runs it, with everything that stands in front of the lane.
const create = async (own: typeof config): Promise<Gateway> => {
  const gateway = createGateway(own)
  await gateway.start()
  return gateway
}
const serving = await serve({ config, create, log: createLog('error') })
const gatewayPort = Number(new URL(`http://${serving.listen}`).port)
const raw = await hotHeaders(gatewayPort)
const headers: string[] = []
for (let index = 0; index < raw.length; index += 2) {
  if (!/^(date|connection|keep-alive)$/i.test(raw[index] ?? '')) headers.push(raw[index] ?? '', raw[index + 1] ?? '')
}
const port =
  which === 'bare'
    ? await listen((_request, response) => {
        response.writeHead(200, headers)
        response.end(bytes)
      })
    : gatewayPort
process.stdout.write(`${JSON.stringify({ url: `http://127.0.0.1:${port}`, path: `/ipfs/${cid}` })}\n`)
// How much work the answers were: processor time, which others on the machine do not stretch.
process.on('message', () => process.send?.(process.cpuUsage()))
process.once('SIGTERM', () => {
  void rm(data, { recursive: true, force: true }).finally(() => process.exit(0))
})
