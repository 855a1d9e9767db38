// Heartbeats between the owner and a worker, one a second each way. Counts heartbeats sent since
// the last one received: if the complete machine stalls, neither is sent.
import type { Clock } from '../core/clock.ts'
import type { Channel } from './channel.ts'

const everyMs = 1000
const mostMissed = 10

/** Calls `silent` each second while the other process is silent. Returns a function that stops. */
export function createPulse(channel: Channel, clock: Clock, silent: () => void): () => void {
  let missed = 0
  let cancel = () => {}
  channel.on('alive', () => {
    missed = 0
  })
  function beat(): void {
    channel.tell('alive')
    cancel = clock.after(everyMs, beat)
    if (++missed > mostMissed) silent()
  }
  beat()
  return () => cancel()
}
