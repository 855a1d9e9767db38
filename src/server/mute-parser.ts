// Makes Node read on in a connection without a request from it: the parser of a connection goes on to the end of what came in one
// piece, and cannot be paused between two requests. A thousand of them cost ten milliseconds and some mebibytes as objects, and next
// to nothing as bytes that are passed over.
import type { Socket } from 'node:net'

const callbacks = ['kOnHeaders', 'kOnHeadersComplete', 'kOnBody', 'kOnMessageComplete'] as const

type Parser = { [slot: number]: unknown; readonly constructor: { readonly [name: string]: unknown } }

/**
 * For a connection that is being closed, or that is closed behind the answer that it waits for. Node keeps parsers for the next
 * connection, so this one gets its callbacks back. With a Node whose parsers are made otherwise nothing happens.
 */
export function muteParser(socket: Socket): void {
  const parser = Reflect.get(socket, 'parser') as Parser | null | undefined
  if (!parser) return
  const slots = callbacks.map((name) => parser.constructor[name])
  if (!slots.every((slot) => typeof slot === 'number' && typeof parser[slot] === 'function')) return
  const saved = (slots as number[]).map((slot) => [slot, parser[slot]] as const)
  for (const [slot] of saved) parser[slot] = undefined
  socket.once('close', () => {
    for (const [slot, callback] of saved) parser[slot] = callback
  })
}
