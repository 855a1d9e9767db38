// Signs of life between the owner and a worker, one a second each way. What counts is how many of ours went out without one of the
// other side: where the whole machine stands still, none of either does.
import type { Clock } from '../core/clock.ts'
import type { Channel } from './channel.ts'

const everyMs = 1000
const mostMissed = 10

/** `silent`: called each second for as long as the other side is. The answer ends it. */
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
