// Caches by CID which files are JSON: content never changes, so a large document is scanned once,
// not for every request, range and HEAD. Concurrent requests for one share a scan.
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { createJsonJudge } from '../../content/json.ts'
import { upTo } from '../../core/cache.ts'
import { textOf } from '../../core/cid.ts'
import { orAborted } from '../../core/clock.ts'
import type { Session } from '../../retrieval/session.ts'

export interface JsonRule {
  /** Undefined if not yet known. */
  known(cid: CID): boolean | undefined
  learn(cid: CID, isJson: boolean): void
  /** Scans the complete file piece by piece, yielding between slices, without keeping any of it. */
  judge(cid: CID, pieces: Pieces, reader: JudgingRequest): Promise<boolean>
}

export type Pieces = AsyncIterable<Uint8Array> | Iterable<Uint8Array>
export type JudgingRequest = { readonly session: Pick<Session, 'giveWay'>; readonly signal: AbortSignal }

const mostRemembered = 100_000
// A few milliseconds of work.
const sliceBytes = 64 * 1024

export function createJsonRule(): JsonRule {
  const verdicts = new LRUCache<string, boolean>(upTo(mostRemembered))
  const running = new Map<string, Promise<void>>()

  async function judgeAlone(key: string, pieces: Pieces, { session, signal }: JudgingRequest): Promise<boolean> {
    const over = Promise.withResolvers<void>()
    running.set(key, over.promise)
    try {
      const found = await judgeInPieces(pieces, session, signal)
      verdicts.set(key, found)
      return found
    } finally {
      running.delete(key)
      over.resolve()
    }
  }

  return {
    known: (cid) => verdicts.get(textOf(cid)),
    learn(cid, isJson) {
      verdicts.set(textOf(cid), isJson)
    },
    async judge(cid, pieces, reader) {
      const key = textOf(cid)
      // If the scanning request fails, the next waiting one takes over.
      for (let other = running.get(key); other !== undefined; other = running.get(key)) {
        await orAborted(reader.signal, other)
        const found = verdicts.get(key)
        if (found !== undefined) return found
      }
      return judgeAlone(key, pieces, reader)
    },
  }
}

async function judgeInPieces(
  pieces: Pieces,
  session: JudgingRequest['session'],
  signal: AbortSignal,
): Promise<boolean> {
  const judge = createJsonJudge()
  for await (const piece of pieces) {
    for (let at = 0; at < piece.byteLength; at += sliceBytes) {
      signal.throwIfAborted()
      if (!judge.add(piece.subarray(at, at + sliceBytes))) return false
      const turn = session.giveWay()
      if (turn !== undefined) await turn
    }
  }
  return judge.end()
}
