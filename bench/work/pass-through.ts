// A peer: http-proxy-middleware in front of the origin, with keep-alive connections. Verifies and
// caches nothing.
import { Agent, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createProxyMiddleware } from 'http-proxy-middleware'

const [target = ''] = process.argv.slice(2)
const proxy = createProxyMiddleware({ target, agent: new Agent({ keepAlive: true, maxSockets: 256 }) })
const server = createServer((request, response) => void proxy(request, response))
server.listen(0, '127.0.0.1', () =>
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`),
)
process.once('SIGTERM', () => process.exit(0))
