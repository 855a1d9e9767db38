// A DNS server for TXT records, over UDP and TCP on the same port and over HTTPS' wire format on plain HTTP, that says
// what a test wants. It writes down what it was asked.
import { createSocket, type Socket as UdpSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { type AddressInfo, createServer as createTcpServer, type Server, type Socket } from 'node:net'
import { type Answer, type DecodedPacket, decode, encode, type Packet } from 'dns-packet'

export type DnsFault = 'silent' | 'servfail' | 'truncate' | 'foreign' | 'garbage'

export interface DnsServer {
  /** host:port of UDP and TCP. */
  readonly address: string
  /** http://…/dns-query */
  readonly url: string
  /** Name → TXT texts. A name that is not here does not exist. */
  readonly texts: Map<string, readonly string[]>
  readonly asked: string[]
  ttl: number
  fault: DnsFault | undefined
  close(): Promise<void>
}

const authoritative = 0x8400

export async function startDnsServer(): Promise<DnsServer> {
  const texts = new Map<string, readonly string[]>()
  const sockets = new Set<Socket>()

  function answer(bytes: Uint8Array, over: string): Buffer | undefined {
    const query: DecodedPacket = decode(Buffer.from(bytes))
    const [question] = query.questions ?? []
    const name = question?.name ?? ''
    server.asked.push(`${over} ${question?.type} ${name}`)
    if (server.fault === 'silent') return undefined
    if (server.fault === 'garbage') return Buffer.concat([Buffer.from(bytes).subarray(0, 2), Buffer.alloc(20, 0xff)])
    const found = texts.get(name.toLowerCase())
    const cut = server.fault === 'truncate' && over === 'udp'
    const rcode = server.fault === 'servfail' ? 2 : found ? 0 : 3
    const answers: Answer[] = (cut ? [] : (found ?? [])).map((data) => ({ type: 'TXT', name, ttl: server.ttl, data }))
    const foreign = [{ type: 'TXT', name: '_dnslink.elsewhere.example', class: 'IN' }] as const
    const packet: Packet = {
      type: 'response',
      id: query.id ?? 0,
      flags: authoritative | rcode | (cut ? 0x200 : 0),
      questions: server.fault === 'foreign' ? [...foreign] : (query.questions ?? []),
      answers,
    }
    return Buffer.from(encode(packet))
  }

  const tcp = createTcpServer((socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    socket.on('error', () => {})
    socket.on('data', (bytes) => {
      const reply = answer(bytes.subarray(2), 'tcp')
      if (!reply) return
      const length = Buffer.alloc(2)
      length.writeUInt16BE(reply.byteLength)
      // In two pieces: a reader has to wait for the rest.
      socket.write(Buffer.concat([length, reply.subarray(0, 5)]))
      setImmediate(() => socket.write(reply.subarray(5)))
    })
  })
  const udp = await bothListen(tcp)
  const { port } = tcp.address() as AddressInfo
  udp.on('message', (bytes, from) => {
    const reply = answer(bytes, 'udp')
    if (reply) udp.send(reply, from.port, from.address)
  })
  const http = createServer((request, response) => {
    const pieces: Buffer[] = []
    request.on('data', (piece: Buffer) => pieces.push(piece))
    request.on('end', () => {
      const reply = answer(Buffer.concat(pieces), 'https')
      if (!reply) return
      response.writeHead(200, { 'content-type': 'application/dns-message' }).end(reply)
    })
  })
  http.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))

  const server: DnsServer = {
    address: `127.0.0.1:${port}`,
    url: `http://127.0.0.1:${(http.address() as AddressInfo).port}/dns-query`,
    texts,
    asked: [],
    ttl: 60,
    fault: undefined,
    async close() {
      const closed = [
        new Promise<void>((resolve) => udp.close(() => resolve())),
        new Promise<void>((resolve) => tcp.close(() => resolve())),
        new Promise<void>((resolve) => http.close(() => resolve())),
      ]
      for (const socket of sockets) socket.destroy()
      await Promise.all(closed)
    },
  }
  return server
}

/** On one port over TCP and UDP. One that is free for TCP may be taken for UDP: by a client of a test beside this one. */
async function bothListen(tcp: Server): Promise<UdpSocket> {
  for (let tries = 0; ; tries++) {
    await once(tcp.listen(0, '127.0.0.1'), 'listening')
    const udp = createSocket('udp4')
    try {
      udp.bind((tcp.address() as AddressInfo).port, '127.0.0.1')
      await once(udp, 'listening')
      return udp
    } catch (error) {
      udp.close()
      await new Promise((resolve) => tcp.close(resolve))
      if (tries === 9) throw error
    }
  }
}
