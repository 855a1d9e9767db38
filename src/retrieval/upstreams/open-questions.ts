// The questions that one upstream has now: those of readers, long searches for what may be nowhere, and those that it is
// answering with bytes. Searches have a small share, and more only while no reader wants it.
import type { Clock } from '../../core/clock.ts'
import type { Failure } from '../../core/failure.ts'
import { Stop } from './stop.ts'
import type { Window } from './window.ts'

/** `overtakenBy`: how many later questions were answered before it. `isLost`: the upstream went out before it answered. */
export type OpenQuestion = { readonly at: number; readonly letGo: Stop; overtakenBy: number; isLost: boolean }

export interface OpenQuestions {
  open(isSearch: boolean): OpenQuestion
  /** The upstream began to answer it. False: it did before, or the question is over. */
  answered(question: OpenQuestion): boolean
  /** False: it was over already. */
  close(question: OpenQuestion): boolean
  /** The question takes long, and the upstream has answered others meanwhile. */
  isOvertaken(question: OpenQuestion): boolean
  /** The upstream answered a question, or so many, that began then. */
  alive(beganAt: number, answers: number): void
  /** All that readers asked take long from now on. */
  setAside(): void
  /**
   * Whether something was done for a reader that finds no room: a late question is a search, and searches may have to
   * go.
   */
  makeRoom(): boolean
  hasSearchRoom(isReaderWaiting: boolean): boolean
  readonly hasRoom: boolean
  /** Readers' questions fill the window. */
  readonly isWindowFull: boolean
  readonly size: number
}

export type OpenQuestionsOptions = {
  readonly most: number
  readonly window: Window
  readonly clock: Clock
  readonly lateMs: () => number
  /** All slots are held by questions that are late. */
  readonly onStuck: () => void
  /** The reason of a search that is given up after so long. `hadTime`: the upstream is well, and answered others meanwhile. */
  readonly givenUp: (ms: number, hadTime: boolean) => Failure
}

const searchShare = 1 / 8
const idleSearchShare = 3 / 4
const enoughOvertook = 2
// A question is given up for others only when it is surely a long one: on a busy machine an upstream that is well answers late too.
const leastBeforeLetGoMs = 2000
// Sooner where the upstream answered later ones meanwhile, and usually takes a small part of that.
const leastOvertakenMs = 1000
const lateTimes = 4

export function createOpenQuestions(options: OpenQuestionsOptions): OpenQuestions {
  const { most, window, clock, lateMs, onStuck, givenUp } = options
  // All in the order in which they were asked.
  const asked = new Set<OpenQuestion>()
  const searching = new Set<OpenQuestion>()
  const sending = new Set<OpenQuestion>()

  const size = () => asked.size + searching.size + sending.size
  const hasShare = () => searching.size < Math.max(1, Math.floor(window.size * searchShare))

  /** Makes the oldest late question that was overtaken a search. */
  function demote(now: number, late: number): boolean {
    for (const question of asked) {
      if (now - question.at < late) return false
      if (question.overtakenBy < enoughOvertook) continue
      asked.delete(question)
      searching.add(question)
      return true
    }
    return false
  }

  /** Gives up the oldest search that has had its time, if searches have more than their share of the connections. */
  function giveUpSearch(now: number, late: number): boolean {
    const [search] = searching
    if (!search || size() < most || searching.size <= Math.floor(most * searchShare)) return false
    const hadTime = search.overtakenBy >= enoughOvertook && !search.isLost && !window.isCrowded
    const soonest = hadTime
      ? Math.min(leastBeforeLetGoMs, Math.max(leastOvertakenMs, late * lateTimes))
      : leastBeforeLetGoMs
    if (now - search.at < Math.max(late, soonest)) return false
    searching.delete(search)
    search.letGo.stop(givenUp(now - search.at, hadTime))
    return true
  }

  return {
    open(isSearch) {
      const question = { at: clock.monotonic(), letGo: new Stop(), overtakenBy: 0, isLost: false }
      ;(isSearch ? searching : asked).add(question)
      return question
    },
    answered(question) {
      if (!asked.delete(question) && !searching.delete(question)) return false
      sending.add(question)
      return true
    },
    close(question) {
      const isOpen = asked.delete(question) || searching.delete(question) || sending.delete(question)
      // A set that grows or shrinks leaves its old table behind, and old tables keep alive what lay in them (flights.ts).
      if (isOpen) question.letGo.end()
      return isOpen
    },
    isOvertaken: (question) =>
      searching.has(question) ||
      (question.overtakenBy >= enoughOvertook && clock.monotonic() - question.at >= lateMs()),
    alive(beganAt, answers) {
      for (const questions of [asked, searching])
        for (const question of questions) if (question.at < beganAt) question.overtakenBy += answers
    },
    setAside() {
      for (const question of asked) searching.add(question)
      for (const question of searching) question.isLost = true
      asked.clear()
    },
    makeRoom() {
      const now = clock.monotonic()
      const late = lateMs()
      const [oldest] = asked
      if (oldest && now - oldest.at >= late) {
        if (demote(now, late)) return true
        onStuck()
      }
      return giveUpSearch(now, late)
    },
    hasSearchRoom: (isReaderWaiting) =>
      size() < most &&
      (hasShare() || (!isReaderWaiting && asked.size + searching.size < window.size * idleSearchShare)),
    get hasRoom() {
      return asked.size < window.size && size() < most
    },
    get isWindowFull() {
      return asked.size >= window.size
    },
    get size() {
      return size()
    },
  }
}
