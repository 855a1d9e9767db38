// Remembers by CID which files are JSON: content never changes, so a large document is parsed once and not for every
// request, range and HEAD. Also bounds the bytes in memory while files are judged.
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { isJson } from '../../content/json.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import { createGate } from '../../core/gate.ts'
import { upTo } from '../../core/lru.ts'

export interface JsonRule {
  /** Undefined: not judged yet. */
  known(cid: CID): boolean | undefined
  learn(cid: CID, isJson: boolean): void
  judge(cid: CID, whole: Uint8Array): boolean
  /** Waits a short time for so much memory; the result gives the memory back. */
  room(bytes: number, signal: AbortSignal): Promise<() => void>
}

const mostRemembered = 100_000
const waitMs = 5000

const mostInLine = 10_000

export function createJsonRule({ heldBytes, clock }: { readonly heldBytes: number; readonly clock: Clock }): JsonRule {
  const verdicts = new LRUCache<string, boolean>(upTo(mostRemembered))
  const gate = createGate({ most: heldBytes, inLine: mostInLine, full: tooMuch, patience: { ms: waitMs, clock } })

  const learn = (cid: CID, found: boolean): void => {
    verdicts.set(cid.toString(), found)
  }

  return {
    known: (cid) => verdicts.get(cid.toString()),
    learn,
    judge(cid, whole) {
      const found = isJson(whole)
      learn(cid, found)
      return found
    },
    room: (bytes, signal) => gate.enter(signal, bytes),
  }
}

const tooMuch = (): Failure =>
  new Failure('overloaded', 'too many large JSON files are being read; retry in a second', {
    source: 'ours',
    retryAfterMs: 1000,
  })
