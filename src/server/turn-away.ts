// Answers connections that there is no room for. Closing at once would cause a reset where the client's request is still on its way,
// and the reset takes the answer with it; so each waits for its client to close, while descriptors are left for that.
import { randomUUID } from 'node:crypto'
import type { Socket } from 'node:net'
import type { Clock } from '../core/clock.ts'
import { muteParser } from './mute-parser.ts'
import { problemText } from './problem-text.ts'

const mostMs = 1000

/** Answers 503 with the limit as the reason. `most`: so many wait at once; beyond that the one that waited longest is closed. */
export type TurnAway = (socket: Socket, limit: string, most: number) => void

export function createTurnAway(clock: Pick<Clock, 'after'>): TurnAway {
  const waiting = new Set<Socket>()
  return (socket, limit, most) => {
    for (const first of waiting) {
      if (waiting.size < most) break
      waiting.delete(first)
      first.destroy()
    }
    waiting.add(socket)
    const stop = clock.after(mostMs, () => socket.destroy())
    socket.once('close', () => {
      waiting.delete(socket)
      stop()
    })
    // What the client asks is read, so that there is no reset, and is no request any more.
    muteParser(socket)
    const detail = `too many connections (limits.${limit}); retry in a second`
    socket.end(problemText(503, { kind: 'overloaded', detail, requestId: randomUUID() }, [['Retry-After', '1']]))
  }
}
