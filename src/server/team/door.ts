// The door at which the other processes of a gateway hand on requests.
import { rmSync } from 'node:fs'
import type { RequestListener, Server } from 'node:http'
import { throughInnerDoor } from '../../team/inner-door.ts'
import { createHttpServer } from '../http-server.ts'

/** What one process says to another of the client. */
const peerBytes = 2048

export async function openDoor(path: string, handler: RequestListener): Promise<Server> {
  // One that was killed leaves it, and nobody else has this place.
  rmSync(path, { force: true })
  const door = createHttpServer(throughInnerDoor(handler), { moreHeaderBytes: peerBytes })
  // The other side closes what is idle.
  door.keepAliveTimeout = 0
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  door.once('error', reject)
  door.listen(path, resolve)
  await promise
  return door
}
