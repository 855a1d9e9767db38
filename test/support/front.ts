// A front on a free port of this machine.
import type { RequestListener } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { Front, type FrontOptions } from '../../src/server/front.ts'

export type OpenFront = {
  readonly front: Front
  readonly port: number
  readonly url: string
  close(): Promise<void>
}

/** Of clients, from now on. */
export function onConnection({ servers }: Front, listener: (socket: Socket) => void): void {
  for (const server of servers) server.on('connection', listener)
}

export async function openFront(handle: RequestListener, options?: FrontOptions, at = 0): Promise<OpenFront> {
  const front = new Front(handle, options)
  await front.listen({ host: '127.0.0.1', port: at })
  const { port } = front.address as AddressInfo
  return {
    front,
    port,
    url: `http://127.0.0.1:${port}`,
    async close() {
      const closed = front.close()
      front.destroy()
      await closed
    },
  }
}
