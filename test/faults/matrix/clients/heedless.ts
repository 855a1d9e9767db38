// Kept connections of clients that ask again as soon as they are answered, whatever they are told: more of them than a turn of the
// loop can bear. Each comes for the next cold file.
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { addFile, type BlockMap, noise } from '../../../support/fixtures.ts'
import type { Met, Target } from './attacks.ts'

const clients = 2000
/** More than its memory tier has room for. */
const files = 40_000
const fileBytes = 1024
const attackMs = 8000
/** They connect in groups, and ask when all have. */
const group = 50
/** Of all answers. What is let in goes on meanwhile: where a turn has no end it is a twentieth. */
const minServed = 1 / 10

export const coldFiles = async (blocks: BlockMap): Promise<string[]> => {
  const all = noise(files * fileBytes, 7)
  const cids: string[] = []
  for (let at = 0; at < files; at++)
    cids.push(String((await addFile(blocks, all.subarray(at * fileBytes, (at + 1) * fileBytes))).cid))
  return cids
}

export async function askAgainAtOnce({ port, content }: Target): Promise<Met> {
  const statuses = new Map<string, number>()
  const answered = new Set<Socket>()
  let next = 0
  let isOver = false
  let closed = 0
  const ask = (socket: Socket): void => {
    if (!isOver) socket.write(`GET /ipfs/${content[next++ % content.length]} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n`)
  }
  const goOn = (socket: Socket) => {
    answered.add(socket)
    ask(socket)
  }
  const sockets: Socket[] = []
  for (let count = 0; count < clients; count++) {
    const socket = connect(port, '127.0.0.1')
    socket.on('error', () => {})
    socket.on('data', answers(socket, statuses, goOn))
    socket.on('close', () => !isOver && closed++)
    sockets.push(socket)
    if (count % group === 0) await sleep(20)
  }
  await sleep(500)
  sockets.forEach(ask)
  await sleep(attackMs)
  isOver = true
  for (const socket of sockets) socket.destroy()
  const all = [...statuses.values()].reduce((sum, count) => sum + count, 0)
  const served = statuses.get('200') ?? 0
  const odd = [...statuses].filter(([status]) => status !== '200' && status !== '503')
  return {
    note: `${served} served, ${statuses.get('503') ?? 0} refused`,
    broken: [
      ...(served < all * minServed ? [`only ${served} of ${all} are served`] : []),
      ...(answered.size < clients ? [`${clients - answered.size} connections have no answer`] : []),
      ...(closed > 0 ? [`${closed} connections are closed`] : []),
      ...odd.map(([status, count]) => `${count} are answered ${status}`),
    ],
  }
}

/** Counts the answers of a connection by status; behind each the next request goes out. */
function answers(
  socket: Socket,
  statuses: Map<string, number>,
  onAnswer: (socket: Socket) => void,
): (piece: Buffer) => void {
  let text = ''
  return (piece) => {
    text += piece.toString('latin1')
    const head = text.indexOf('\r\n\r\n')
    const bytes = Number(/\r\ncontent-length: (\d+)/i.exec(text)?.[1])
    if (head < 0 || text.length < head + 4 + bytes) return
    const status = text.slice(9, 12)
    statuses.set(status, (statuses.get(status) ?? 0) + 1)
    text = ''
    onAnswer(socket)
  }
}
