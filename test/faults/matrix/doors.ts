// What stands before a service that is well: its port, its name and its certificate, each of which can go and come back.
import dns from 'node:dns'
import { type AddressInfo, connect, createServer as createPlainServer, type Server, type Socket } from 'node:net'
import {
  createServer as createTlsServer,
  getCACertificates,
  setDefaultCACertificates,
  type Server as TlsServer,
} from 'node:tls'
import { selfSigned } from '../../support/certificate.ts'

export type Door = {
  readonly url: string
  break(): Promise<void>
  mend(): Promise<void>
  close(): Promise<void>
}

/** To the service at `target`. */
export type DoorKind = (target: string) => Promise<Door>

const host = 'service.invalid'
const day = 86_400_000

/** Its port is closed: connections are refused. */
export const port: DoorKind = async (target) => {
  const sockets = new Set<Socket>()
  const server = createPlainServer((socket) => passOn(socket, target, sockets))
  let at = await listen(server, 0)
  // A service that is away has left its port to others. A door at that one would pass on to itself, without end.
  while (at === Number(new URL(target).port)) {
    await stop(server, sockets)
    at = await listen(server, 0)
  }
  return {
    url: `http://127.0.0.1:${at}`,
    async break() {
      await stop(server, sockets)
    },
    async mend() {
      await listen(server, at)
    },
    close: () => stop(server, sockets),
  }
}

/** The resolver of this process no longer knows its name. */
export const name: DoorKind = async (target) => {
  const { lookup } = dns
  const door = await port(target)
  let isGone = false
  const asking = (asked: string, options: unknown, answer?: unknown): void => {
    const done = (answer ?? options) as (...told: unknown[]) => void
    if (asked !== host) return void (lookup as (...told: unknown[]) => void)(asked, options, answer)
    const error = Object.assign(new Error(`getaddrinfo ENOTFOUND ${host}`), {
      code: 'ENOTFOUND',
      syscall: 'getaddrinfo',
    })
    const isAll = typeof options === 'object' && (options as { all?: boolean } | null)?.all === true
    const found = isAll ? [[{ address: '127.0.0.1', family: 4 }]] : ['127.0.0.1', 4]
    setImmediate(() => (isGone ? done(error) : done(null, ...found)))
  }
  Object.assign(dns, { lookup: asking })
  return {
    url: `http://${host}:${new URL(door.url).port}`,
    async break() {
      isGone = true
      // No connection is left that was made while it was known.
      await door.break()
      await door.mend()
    },
    async mend() {
      isGone = false
    },
    async close() {
      Object.assign(dns, { lookup })
      await door.close()
    },
  }
}

/** It has been expired for a day. */
export const certificate: DoorKind = async (target) => {
  const now = Date.now()
  const valid = selfSigned('localhost', new Date(now - day), new Date(now + day))
  const expired = selfSigned('localhost', new Date(now - 10 * day), new Date(now - day))
  const trusted = getCACertificates('default')
  setDefaultCACertificates([...trusted, valid.cert, expired.cert])
  const sockets = new Set<Socket>()
  const server: TlsServer = createTlsServer(valid, (socket) => passOn(socket, target, sockets))
  server.on('tlsClientError', () => {})
  const at = await listen(server, 0)
  return {
    url: `https://localhost:${at}`,
    async break() {
      server.setSecureContext(expired)
      for (const socket of sockets) socket.destroy()
    },
    async mend() {
      server.setSecureContext(valid)
    },
    async close() {
      await stop(server, sockets)
      setDefaultCACertificates(trusted)
    },
  }
}

function passOn(socket: Socket, target: string, sockets: Set<Socket>): void {
  const inner = connect(Number(new URL(target).port), '127.0.0.1')
  sockets.add(socket)
  socket.on('close', () => {
    sockets.delete(socket)
    inner.destroy()
  })
  inner.on('close', () => socket.destroy())
  for (const one of [socket, inner]) one.on('error', () => {})
  socket.pipe(inner).pipe(socket)
}

function listen(server: Server, at: number): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(at, '127.0.0.1', () => {
      server.off('error', reject)
      resolve((server.address() as AddressInfo).port)
    })
  })
}

async function stop(server: Server, sockets: ReadonlySet<Socket>): Promise<void> {
  const closed = new Promise((resolve) => server.close(resolve))
  for (const socket of sockets) socket.destroy()
  await closed
}
