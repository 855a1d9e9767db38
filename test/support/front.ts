// A front on a free port of this machine.
import type { RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createFront, type Front, type FrontOptions } from '../../src/server/front.ts'

export type OpenFront = {
  readonly front: Front
  readonly port: number
  readonly url: string
  close(): Promise<void>
}

export async function openFront(handle: RequestListener, options?: FrontOptions, at = 0): Promise<OpenFront> {
  const front = createFront(handle, options)
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
