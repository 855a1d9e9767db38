// Spreads requests that come by the hundred in one turn of the loop over several turns. Where a thousand sockets have something to
// read, libuv reads them up to 48 times, one time behind the other, before a timer fires or anyone goes on who gave way: clients that
// ask again as soon as they are answered keep the loop in one turn for seconds.
import type { IncomingMessage, ServerResponse } from 'node:http'

/** Handled as they come; then all wait, and as many are handled at the end of each turn until nobody waits. */
const atOnce = 512

type Handle<Response extends ServerResponse> = (request: IncomingMessage, response: Response) => void

/** `later` runs an action behind what the sockets brought, in this turn or, if it is called there, in the next one. */
export function createArrivals<Response extends ServerResponse>(
  handle: Handle<Response>,
  later: (action: () => void) => void = setImmediate,
): Handle<Response> {
  let waiting: Parameters<typeof handle>[] = []
  let count = 0

  function goOn(): void {
    const now = waiting.slice(0, atOnce)
    waiting = waiting.slice(atOnce)
    if (waiting.length > 0) later(goOn)
    else count = 0
    for (const [request, response] of now) handle(request, response)
  }

  return (request, response) => {
    count++
    if (count > atOnce) return void waiting.push([request, response])
    if (count === atOnce) later(goOn)
    handle(request, response)
  }
}
