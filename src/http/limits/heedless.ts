// Clients that are told to come later, and ask again at once. Each refusal costs little, and a flood of them makes every other client
// wait: so their connection is not read for a while, for longer each time. Who waits as long as the refusal said is not held back.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Clock } from '../../core/clock.ts'
import { ordinalOf } from '../wire/own-server.ts'

export interface Heedless {
  /** This answer tells its client to come later. */
  refused(request: IncomingMessage, response: ServerResponse): void
  /** How often a connection was not read for a while. */
  readonly held: number
}

export type HeedlessOptions = {
  readonly clock: Clock
  /** Whether the connection may bring requests of many clients: one of them is not to wait for another. */
  readonly isShared: (request: IncomingMessage) => boolean
  readonly random?: () => number
}

/** Refusals, one behind the other: a page asks for a few things at once. */
const free = 2
const firstMs = 100
/** `Retry-After` is a second at least. */
const mostMs = 1000
/** More or less than that: those who were refused together are not to come back together. */
const spread = 0.25
/** Read again in one turn of the loop, which answers each of them before it comes to anybody else. */
const inOneTurn = 32

/**
 * `at`: of the last refusal, or of the moment in which it was read again. `request`: which one of its connection was refused last.
 * `pauses`: how often it was held, since an answer may go out, and hold it anew, while it is still being held.
 */
type Line = { count: number; at: number; request: number; pauses: number }
type Pause = { readonly socket: Socket; readonly line: Line; readonly number: number }

export function createHeedless({ clock, isShared, random = Math.random }: HeedlessOptions): Heedless {
  const lines = new WeakMap<Socket, Line>()
  let over: Pause[] = []
  let held = 0

  function readAgain(): void {
    const now = over.slice(0, inOneTurn)
    over = over.slice(inOneTurn)
    if (over.length > 0) setImmediate(readAgain)
    for (const { socket, line, number } of now) {
      if (line.pauses !== number) continue
      line.at = clock.monotonic()
      socket.resume()
    }
  }

  function hold(socket: Socket, line: Line): void {
    const ms = Math.min(mostMs, firstMs * 2 ** (line.count - free - 1)) * (1 + spread * (2 * random() - 1))
    // Node reads on when an answer is out.
    setImmediate(() => {
      if (socket.destroyed) return
      held++
      socket.pause()
      const pause: Pause = { socket, line, number: ++line.pauses }
      clock.after(ms, () => {
        if (over.length === 0) setImmediate(readAgain)
        over.push(pause)
      })
    })
  }

  return {
    refused(request, response) {
      const { socket } = request
      const ordinal = ordinalOf(request)
      if (ordinal === undefined || isShared(request)) return
      const now = clock.monotonic()
      let line = lines.get(socket)
      if (!line) lines.set(socket, (line = { count: 0, at: now, request: ordinal, pauses: 0 }))
      else if (now - line.at > mostMs || ordinal > line.request + 1) line.count = 0
      const own = line
      own.count++
      own.at = now
      own.request = ordinal
      response.once('close', () => {
        // Of a body the rest is still read, and a connection that ends is let go.
        const goesOn = request.complete && response.shouldKeepAlive
        if (goesOn && own.count > free) hold(socket, own)
      })
    },
    get held() {
      return held
    },
  }
}
