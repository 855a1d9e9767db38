// Writes blocks to a slow tier behind the requests: a queue bounded in bytes and blocks, a few writes at a time, each
// block once. When it is full the newest are dropped and counted: the tier may be slower than the network for a while.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../backends/tiers/contract.ts'
import { blockKey } from '../block.ts'
import { cancelled } from '../failure.ts'

export interface Filler {
  add(cid: CID, bytes: Uint8Array): void
  /** Takes a block out again and waits for a write of it that is under way. */
  remove(cid: CID): Promise<void>
  readonly dropped: number
  readonly queuedBytes: number
  /** Writes what is queued, for so long at most. */
  close(withinMs: number): Promise<void>
}

const mostBytes = 32 * 1024 * 1024
const mostBlocks = 4096
const writesAtOnce = 8

export function createFiller(tier: Tier): Filler {
  const queue = new Map<string, { readonly cid: CID; readonly bytes: Uint8Array }>()
  const writing = new Map<string, Promise<void>>()
  const closing = new AbortController()
  let queuedBytes = 0
  let dropped = 0
  let onIdle = () => {}

  function take(key: string): { cid: CID; bytes: Uint8Array } | undefined {
    const entry = queue.get(key)
    if (!entry) return undefined
    queue.delete(key)
    queuedBytes -= entry.bytes.byteLength
    return entry
  }

  function work(): void {
    while (writing.size < writesAtOnce) {
      const [key] = queue.keys()
      const entry = key === undefined ? undefined : take(key)
      if (key === undefined || !entry) break
      // What became of a write is the tier's guard's business: it counts, logs and opens its breaker.
      const write = tier
        .put(entry.cid, entry.bytes, closing.signal)
        .catch(() => {
          dropped++
        })
        .finally(() => {
          writing.delete(key)
          work()
        })
      writing.set(key, write)
    }
    if (writing.size === 0 && queue.size === 0) onIdle()
  }

  return {
    add(cid, bytes) {
      const key = blockKey(cid)
      if (queue.has(key) || writing.has(key)) return
      if (queuedBytes + bytes.byteLength > mostBytes || queue.size >= mostBlocks || closing.signal.aborted) {
        dropped++
        return
      }
      queue.set(key, { cid, bytes })
      queuedBytes += bytes.byteLength
      work()
    },
    async remove(cid) {
      take(blockKey(cid))
      await writing.get(blockKey(cid))
    },
    get dropped() {
      return dropped
    },
    get queuedBytes() {
      return queuedBytes
    },
    async close(withinMs) {
      if (writing.size > 0 || queue.size > 0) {
        const idle = Promise.withResolvers<void>()
        onIdle = idle.resolve
        const timer = setTimeout(idle.resolve, withinMs)
        await idle.promise
        clearTimeout(timer)
      }
      closing.abort(cancelled('the gateway is closing'))
      await Promise.all(writing.values())
    },
  }
}
