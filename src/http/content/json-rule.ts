// Which files are JSON, remembered by CID: what a CID names never changes, so a large document is parsed once and not for
// every request, range and HEAD. And how many bytes are held at once to find out, however many clients ask.
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { isJson } from '../../content/json.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'

export interface JsonRule {
  /** Undefined: nobody has looked yet. */
  known(cid: CID): boolean | undefined
  learn(cid: CID, isJson: boolean): void
  judge(cid: CID, whole: Uint8Array): boolean
  /** Waits for room to hold so many bytes, and not for long; what it resolves with gives the room back. */
  room(bytes: number, signal: AbortSignal): Promise<() => void>
}

const mostRemembered = 100_000
const waitMs = 5000

type Waiting = { readonly bytes: number; readonly enter: () => void }

export function createJsonRule({ heldBytes, clock }: { readonly heldBytes: number; readonly clock: Clock }): JsonRule {
  const verdicts = new LRUCache<string, boolean>({ max: mostRemembered })
  const line: Waiting[] = []
  let held = 0

  const learn = (cid: CID, found: boolean): void => {
    verdicts.set(cid.toString(), found)
  }
  const admit = (): void => {
    // In order, so that a large one is not passed over for ever.
    for (let next = line[0]; next && (held === 0 || held + next.bytes <= heldBytes); next = line[0]) {
      line.shift()
      next.enter()
    }
  }

  return {
    known: (cid) => verdicts.get(cid.toString()),
    learn,
    judge(cid, whole) {
      const found = isJson(whole)
      learn(cid, found)
      return found
    },
    room(bytes, signal) {
      return new Promise((resolve, reject) => {
        if (signal.aborted) return reject(signal.reason)
        const leaveLine = (reason: unknown) => {
          const at = line.indexOf(waiting)
          if (at >= 0) line.splice(at, 1)
          settle()
          reject(reason)
          admit()
        }
        const onAbort = () => leaveLine(signal.reason)
        const stop = clock.after(waitMs, () =>
          leaveLine(
            new Failure('overloaded', 'too many large documents are being looked into; come back in a second', {
              source: 'ours',
              retryAfterMs: 1000,
            }),
          ),
        )
        const settle = () => {
          stop()
          signal.removeEventListener('abort', onAbort)
        }
        const waiting: Waiting = {
          bytes,
          enter() {
            settle()
            held += bytes
            let isHeld = true
            resolve(() => {
              if (!isHeld) return
              isHeld = false
              held -= bytes
              admit()
            })
          },
        }
        signal.addEventListener('abort', onAbort, { once: true })
        line.push(waiting)
        admit()
      })
    },
  }
}
