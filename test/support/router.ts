// A router in the hand of the test: it names whom it is told to, or misbehaves.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'

export interface TestRouter {
  readonly url: string
  /** The paths that it was asked for. */
  readonly seen: string[]
  /** Addresses of gateways, by no CID in particular. */
  names: readonly string[]
  /** Records of names, by key in base36. */
  readonly records: Map<string, Uint8Array>
  /** Answers in the place of it. */
  instead: ((request: IncomingMessage, response: ServerResponse) => void) | undefined
  close(): Promise<void>
}

/** `http://127.0.0.1:8080` as a multiaddr. */
export function addressOf(url: string): string {
  const { hostname, port } = new URL(url)
  return `/ip4/${hostname}/tcp/${port}/http`
}

export const recordOf = (address: string): string =>
  `${JSON.stringify({ Schema: 'peer', ID: '12D3KooWRawPbxPtP1eZaJpumGnyWX2DcUyd3RQnydr3eAto4Az7', Addrs: [address], Protocols: ['transport-ipfs-gateway-http'] })}\n`

export async function startRouter(names: readonly string[] = []): Promise<TestRouter> {
  const sockets = new Set<Socket>()
  const server = createServer((request, response) => {
    const { url = '' } = request
    router.seen.push(url)
    if (router.instead) return router.instead(request, response)
    const [, , , kind, name = ''] = url.split('?', 1)[0]?.split('/') ?? []
    const record = kind === 'ipns' ? router.records.get(name) : undefined
    if (record) return void response.writeHead(200, { 'content-type': 'application/vnd.ipfs.ipns-record' }).end(record)
    if (kind !== 'providers') return void response.writeHead(404).end()
    response.writeHead(200, { 'content-type': 'application/x-ndjson' })
    for (const address of router.names) response.write(recordOf(address))
    response.end()
  })
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const router: TestRouter = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    seen: [],
    names,
    records: new Map(),
    instead: undefined,
    async close() {
      for (const socket of sockets) socket.destroy()
      await new Promise<void>((resolve) => server.close(() => resolve()))
    },
  }
  return router
}
