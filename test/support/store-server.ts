// What the stand-ins of stores have in common: a listener that can refuse, fall silent and come back at the same port.
import type { AddressInfo, Server, Socket } from 'node:net'

export interface StoreServer {
  readonly port: number
  /** Connections are refused, those that are open are cut. */
  refuse(): Promise<void>
  /** Listens again, and answers. */
  heal(): Promise<void>
  /** Accepts, reads and says nothing. */
  silence(): void
  /** Connections that are open are half open from now on: what comes over them is lost, and nobody is told. New ones are well. */
  strand(): void
  /** Whether what comes over it gets here. */
  hears(socket: Socket): boolean
  readonly connections: number
  stop(): Promise<void>
}

export async function listen(server: Server): Promise<StoreServer> {
  const sockets = new Set<Socket>()
  const stranded = new WeakSet<Socket>()
  let isSilent = false
  server.on('connection', (socket: Socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.once('close', () => sockets.delete(socket))
  })
  const open = (port: number): Promise<void> =>
    new Promise((resolve, reject) => {
      server.once('error', reject)
      server.listen(port, '127.0.0.1', () => {
        server.off('error', reject)
        resolve()
      })
    })
  const shut = (): Promise<void> =>
    new Promise((resolve) => {
      if (!server.listening) return resolve()
      server.close(() => resolve())
      for (const socket of sockets) socket.destroy()
    })
  await open(0)
  const { port } = server.address() as AddressInfo
  return {
    port,
    refuse: shut,
    async heal() {
      // What was said into the silence stays unanswered, as with a server that was restarted.
      if (isSilent) for (const socket of sockets) socket.destroy()
      isSilent = false
      if (!server.listening) await open(port)
    },
    silence() {
      isSilent = true
    },
    strand() {
      for (const socket of sockets) stranded.add(socket)
    },
    hears: (socket) => !isSilent && !stranded.has(socket),
    get connections() {
      return sockets.size
    },
    stop: shut,
  }
}
