// The internal socket at which sibling processes forward requests.
import { rmSync } from 'node:fs'
import type { RequestListener } from 'node:http'
import { throughInnerDoor } from '../../team/inner-door.ts'
import { createFront, type Front } from '../front.ts'

/** Headers with which a sibling process describes the client. */
const peerBytes = 2048
const headersMs = 60_000

export async function openDoor(path: string, handler: RequestListener): Promise<Front> {
  // A stale file of a killed process; nobody else uses this folder.
  rmSync(path, { force: true })
  const door = createFront(throughInnerDoor(handler), { moreHeaderBytes: peerBytes })
  // The other process closes idle connections.
  door.setTimeouts({ headersTimeout: headersMs, keepAliveTimeout: 0 })
  await door.listen((server, backlog) => server.listen({ path, backlog }))
  return door
}
