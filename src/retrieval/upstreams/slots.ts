// The slots at one upstream, and the queue for them: the only queue there is on the way to it, so that time spent in it is never
// held against the upstream. Readers go first, in the order of fair-queue.ts; which questions are open is known by open-questions.ts.
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import type { LoopTurns } from '../turns/loop-turns.ts'
import { createFairQueue, type Rank } from './fair-queue.ts'
import { createOpenQuestions } from './open-questions.ts'
import type { Stop } from './stop.ts'
import type { Window } from './window.ts'

export interface Slot {
  /** Since when the upstream has the question. */
  readonly at: number
  /** Whether the window was full when it got its slot. */
  readonly wasFull: boolean
  /** The question takes long, and the upstream has answered others meanwhile: the content may be nowhere. */
  readonly isOvertaken: () => boolean
  /** Stopped when readers need the slot of a search that has had its time. */
  readonly letGo: Stop
  /** The upstream answered: with bytes (it goes on) or in words. */
  answered(): void
  /** The question is over. */
  leave(): void
}

/** The client that wants a slot, by its address, and how urgent the question is. */
export type Wanted = { readonly rank: Rank; readonly client: string }

export interface Slots {
  /**
   * Rejects when there is no slot early enough for an answer to come before `giveUpAt`, with the reason of a flush, or as
   * `signal` aborts.
   */
  take(want: Wanted, giveUpAt: number, signal: AbortSignal): Promise<Slot>
  /** How long one would stand in the queue now. */
  readonly expectedWaitMs: number
  /** Gives slots away, if a change allows that now. */
  look(): void
  /**
   * The upstream answered a question, or so many, that began then: those that began before it take long by themselves.
   */
  alive(beganAt: number, answers: number): void
  /** The upstream is out: its open questions are most likely lost, and must not be in the way when it is back. */
  setAside(): void
  /** Sends away the callers that joined the queue before that moment. */
  flush(before: number, reason: () => Failure): void
  readonly queued: number
  readonly taken: number
}

export type SlotsOptions = {
  readonly name: string
  /** Connections at once. */
  readonly most: number
  readonly window: Window
  readonly clock: Clock
  /** Shared with all that takes turns on this loop. */
  readonly turns: LoopTurns
  /** Milliseconds until one may be asked, for reasons besides the slots; Infinity: not before `look`. */
  readonly waitMs: () => number
  /** A question that takes longer than this is late. */
  readonly lateMs: () => number
  /** The failure of a question that found no slot in time; `waitMs`: how long it would have waited. */
  readonly tooLate: (waitMs: number) => Failure
  /** A slot was given away: it counts against budgets. */
  readonly onTaken: () => void
  /** All slots are held by questions that are late, and readers wait: is the upstream alive? */
  readonly onStuck: () => void
}

type SlotWaiter = {
  readonly since: number
  readonly enter: (slot: Slot) => void
  readonly leave: (reason: unknown) => void
  /** Thousands wait in vain for the same moment, and each then looks elsewhere: they learn of it in turns of the loop that have time. */
  readonly leaveInLine: (reason: Failure) => void
}

const mostQueued = 10_000
const lookAgainMs = 100
const leastRetryMs = 1000
const outMs = 60_000
const typicalWeight = 0.1
const guessedMs = 300

export function createSlots(options: SlotsOptions): Slots {
  const { name, most, window, clock, turns, waitMs, lateMs, tooLate, onTaken, onStuck } = options
  const queue = createFairQueue<SlotWaiter>()
  const questions = createOpenQuestions({
    ...{ most, window, clock, lateMs, onStuck },
    givenUp: (ms, hadTime) => givenUp(name, ms, hadTime, expectedWaitMs()),
  })
  let answerMs = guessedMs
  let stopTimer: (() => void) | undefined

  function open(isSearch: boolean): Slot {
    const question = questions.open(isSearch)
    onTaken()
    return {
      at: question.at,
      wasFull: questions.isWindowFull || queue.readers > 0,
      isOvertaken: () => questions.isOvertaken(question),
      letGo: question.letGo,
      answered() {
        answerMs += (clock.monotonic() - question.at - answerMs) * typicalWeight
        if (questions.answered(question)) alive(question.at, 1)
      },
      leave() {
        if (questions.close(question)) look()
      },
    }
  }

  function give(waiter: SlotWaiter, isSearch: boolean): void {
    queue.served(waiter)
    waiter.enter(open(isSearch))
  }

  function alive(beganAt: number, answers: number): void {
    questions.alive(beganAt, answers)
    look()
  }

  function look(): void {
    stopTimer?.()
    stopTimer = undefined
    for (;;) {
      const { reader, searcher } = queue
      if (!reader && !searcher) return
      const wait = waitMs()
      if (wait > 0) return again(wait)
      if (reader && (questions.hasRoom || questions.makeRoom())) {
        if (questions.hasRoom) give(reader, false)
      } else if (searcher && questions.hasSearchRoom(reader !== undefined)) {
        give(searcher, true)
      } else return again(lookAgainMs)
    }
  }

  function again(ms: number): void {
    if (Number.isFinite(ms)) stopTimer = clock.after(Math.max(1, ms), look)
  }

  const expectedWaitMs = () => {
    const wait = waitMs()
    const crowd = queue.readers > 0 || !questions.hasRoom ? ((queue.readers + 1) / window.size) * answerMs : 0
    return Math.max(crowd, Number.isFinite(wait) ? wait : outMs)
  }

  return {
    async take({ rank, client }, giveUpAt, signal) {
      signal.throwIfAborted()
      if ((rank === 'search' ? queue.searchers : queue.readers) >= mostQueued) throw tooLate(expectedWaitMs())
      // Most find no line and a free slot.
      if (rank !== 'search' && queue.readers + queue.searchers === 0 && questions.hasRoom && waitMs() === 0) {
        queue.passed(rank)
        return open(false)
      }
      const { promise, resolve, reject } = Promise.withResolvers<Slot>()
      const waiter: SlotWaiter = {
        since: clock.monotonic(),
        enter: resolve,
        leave(reason) {
          if (queue.delete(waiter)) reject(reason)
        },
        leaveInLine(reason) {
          if (queue.delete(waiter)) void turns.inLine().then(() => reject(reason))
        },
      }
      const onAbort = () => waiter.leave(signal.reason)
      queue.add(waiter, rank, client)
      look()
      if (!queue.has(waiter)) return promise
      const patienceMs = Math.max(0, giveUpAt - answerMs - clock.monotonic())
      const stop = clock.after(patienceMs, () => waiter.leaveInLine(tooLate(expectedWaitMs())))
      signal.addEventListener('abort', onAbort, { once: true })
      try {
        return await promise
      } finally {
        stop()
        signal.removeEventListener('abort', onAbort)
        // No request waits for that moment any more.
        if (queue.readers + queue.searchers === 0) stopTimer?.()
      }
    },
    get expectedWaitMs() {
      return expectedWaitMs()
    },
    look,
    alive,
    setAside: questions.setAside,
    flush(before, reason) {
      for (const waiter of queue.all()) if (waiter.since <= before) waiter.leaveInLine(reason())
    },
    get queued() {
      return queue.readers + queue.searchers
    },
    get taken() {
      return questions.size
    },
  }
}

function givenUp(name: string, ms: number, hadTime: boolean, waitMs: number): Failure {
  const what = `${name} was let go after ${Math.round(ms)} ms without an answer`
  // An upstream that answered later questions first is searching: it had its time for what it has.
  if (hadTime)
    return new Failure('timeout', `${what}, while it answered others`, {
      source: 'upstream',
      facts: { isSearching: true },
    })
  return new Failure('overloaded', `${what}: other requests need its connections`, {
    source: 'ours',
    retryAfterMs: Math.max(leastRetryMs, waitMs),
  })
}
