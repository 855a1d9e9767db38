// The door at which the other processes of a gateway hand on requests.
import { rmSync } from 'node:fs'
import type { RequestListener } from 'node:http'
import { throughInnerDoor } from '../../team/inner-door.ts'
import { createFront, type Front } from '../front.ts'

/** What one process says to another of the client. */
const peerBytes = 2048
const headersMs = 60_000

export async function openDoor(path: string, handler: RequestListener): Promise<Front> {
  // One that was killed leaves it, and nobody else has this place.
  rmSync(path, { force: true })
  const door = createFront(throughInnerDoor(handler), { moreHeaderBytes: peerBytes })
  // The other side closes what is idle.
  door.setTimeouts({ headersTimeout: headersMs, keepAliveTimeout: 0 })
  await door.listen((server, backlog) => server.listen({ path, backlog }))
  return door
}
