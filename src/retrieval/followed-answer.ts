// Which answer of the upstreams a request follows: one at a time brings the block that it wants and those that follow. Decides, too,
// when a block is asked for alone.
import type { CID } from 'multiformats/cid'
import { codec } from '../core/cid.ts'
import type { Flight } from '../core/flights.ts'
import type { DagFlight } from './fetch/dag.ts'
import { sameBytes } from './fetch/key.ts'
import type { DagWant } from './session.ts'
import type { Wanting as Asker } from './upstreams/attempts.ts'

export type LastFrom = 'nowhere' | 'tier' | 'upstream'

export interface FollowedAnswer {
  /** The answer that the request follows, while it goes on. */
  current(): Flight<DagFlight> | undefined
  /** The answer to ask for the block with those that follow it; undefined: ask for it alone. */
  choose(cid: CID, around: DagWant | undefined, lastFrom: LastFrom): Flight<DagFlight> | undefined
  /** This answer did not bring a block that a reader waited for: if it is over, the next answers may do so too. */
  leftOut(answer: Flight<DagFlight>): void
  /** The request follows it no more, and something else keeps its seat. */
  handOver(answer: Flight<DagFlight>): void
  leave(answer: Flight<DagFlight>): void
  end(): void
}

export type FollowedAnswerOptions = {
  readonly joinDag: (want: DagWant, asker: Asker, key?: string) => Flight<DagFlight>
  readonly onItsWay: (cid: CID) => string | undefined
  readonly knowsDags: (cid: CID) => boolean
  readonly askerOf: (lastFrom: LastFrom) => Asker
}

// After an answer left out a block that a reader waited for, this many blocks are asked for one by one.
const firstAlone = 8
const mostAlone = 1024

export function createFollowedAnswer(options: FollowedAnswerOptions): FollowedAnswer {
  const { joinDag, onItsWay, knowsDags, askerOf } = options
  let followed: Flight<DagFlight> | undefined
  let aloneLeft = 0
  let aloneNext = firstAlone

  function leave(answer: Flight<DagFlight>): void {
    answer.leave()
    handOver(answer)
  }

  function handOver(answer: Flight<DagFlight>): void {
    if (followed === answer) followed = undefined
  }

  function current(): Flight<DagFlight> | undefined {
    if (followed?.work.over) leave(followed)
    return followed
  }

  return {
    current,
    choose(cid, around, lastFrom) {
      if (!around) return undefined
      const answer = current()
      if (answer) return answer
      // A reader that caught up with another one's flight flies on with it.
      const key = lastFrom === 'nowhere' ? undefined : onItsWay(cid)
      if (key !== undefined) return (followed = joinDag(around, askerOf(lastFrom), key))
      if (aloneLeft > 0) {
        aloneLeft--
        return undefined
      }
      // One leaf missing between others that are here costs one block, not an answer with everything after it. If a single
      // block is wanted, a CAR is the wrong question too: upstreams leave out blocks that do not decode.
      const isItself = around.segments.length === 0 && sameBytes(cid, around.cid)
      const isAlone = cid.code === codec.raw ? lastFrom === 'tier' || isItself : around.scope === 'block' && isItself
      if (isAlone || (lastFrom !== 'nowhere' && !knowsDags(cid))) return undefined
      return (followed = joinDag(around, askerOf(lastFrom)))
    },
    leftOut(answer) {
      if (!answer.work.over || followed !== answer) return
      leave(answer)
      aloneLeft = aloneNext
      aloneNext = Math.min(mostAlone, aloneNext * 2)
    },
    handOver,
    leave,
    end() {
      if (followed) leave(followed)
    },
  }
}
