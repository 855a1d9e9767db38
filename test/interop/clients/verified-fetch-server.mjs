// A peer of the bench: @helia/verified-fetch behind node:http, as a gateway that is made of it would be. Prints its address.
// Usage: node verified-fetch-server.mjs GATEWAY
// It speaks HTTP to one trustless gateway on this machine and to nothing else: no libp2p, no delegated routers, none of the
// gateways that it knows by itself. Any other address is refused before it is dialed.
import { createServer } from 'node:http'
import { Socket } from 'node:net'
import { fallbackRouter } from '@helia/fallback-router'
import { withHTTP } from '@helia/http'
import { createVerifiedFetch } from '@helia/verified-fetch'
import { createHeliaLight } from 'helia'

const [gateway = ''] = process.argv.slice(2)

const dial = Socket.prototype.connect
Socket.prototype.connect = function connect(...args) {
  const [options] = Array.isArray(args[0]) ? args[0] : args
  if (options?.host !== '127.0.0.1' && options?.hostname !== '127.0.0.1')
    throw new Error(`verified-fetch-server dials ${options?.host ?? options}, which is not on this machine`)
  return dial.apply(this, args)
}

const local = { allowLocal: true, allowInsecure: true }
// An empty list, because without one it takes public addresses.
const node = withHTTP(createHeliaLight(), { delegatedRouters: [], recursiveGateways: [], ...local })
// With fallbacks alone it asks nobody, for ever: so the one gateway is what its routing finds, at no cost.
const only = fallbackRouter({ gateways: [gateway] })
node.addRouter({ name: 'the-only-gateway', findProviders: (cid, options) => only.findProviders(cid, options) })
const verifiedFetch = await createVerifiedFetch(await node.start())

async function answer(path, response) {
  const found = await verifiedFetch(`ipfs://${path.slice('/ipfs/'.length)}`, local)
  const body = Buffer.from(await found.arrayBuffer())
  const type = found.headers.get('content-type') ?? 'application/octet-stream'
  response.writeHead(found.status, { 'Content-Type': type, 'Content-Length': body.byteLength })
  response.end(body)
}

const server = createServer((request, response) => {
  answer(request.url ?? '', response).catch((error) => {
    const body = Buffer.from(String(error))
    response.writeHead(500, { 'Content-Length': body.byteLength }).end(body)
  })
})
server.maxRequestsPerSocket = 1000 // as cidgate has it
server.listen(0, '127.0.0.1', () => process.stdout.write(`http://127.0.0.1:${server.address().port}\n`))
process.once('SIGTERM', () => process.exit(0))
