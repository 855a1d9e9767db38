// Decides which upstreams may be asked twice for one thing. An upstream that was down at its turn, or broke off before its
// first byte, is asked again when it is well: while the client has time, a moment's outage is no reason for an error.
import type { Clock } from '../../core/clock.ts'
import { isFailure } from '../../core/failure.ts'
import type { Member } from './pool.ts'

type Spent = {
  readonly at: number
  readonly wasAsked: boolean
  /** The upstream sent a time to retry: it is not asked before. */
  readonly wasThrottled?: boolean
  readonly isFinal: boolean
  readonly tries: number
}

export const lookAgainMs = 200
const maxTries = 6

export class Tries {
  readonly #clock: Clock
  readonly #giveUpAt: number
  readonly #spent = new Map<Member, Spent>()
  /** One that was asked does not have it: the client gets a quick answer. */
  #isDenied = false

  constructor(clock: Clock, giveUpAt: number) {
    this.#clock = clock
    this.#giveUpAt = giveUpAt
  }

  /** This upstream brought nothing, because of this error. */
  failed(member: Member, error: unknown): void {
    const tries = (this.#spent.get(member)?.tries ?? 0) + 1
    const wasAsked = !isFailure(error, 'unavailable')
    const wasThrottled = isFailure(error, 'throttled')
    const wasSilent = isFailure(error, 'timeout') && error.facts.isSearching !== true
    const mayPass = wasThrottled || isFailure(error, 'upstream-error') || wasSilent
    const isFinal = tries >= maxTries || (wasAsked && !mayPass)
    if (isFailure(error, 'not-found')) this.#isDenied = true
    this.#spent.set(member, { at: this.#clock.monotonic(), wasAsked, wasThrottled, isFinal, tries })
  }

  /** This upstream is not asked again, however its answer ends. */
  over(member: Member): void {
    this.#spent.set(member, { at: this.#clock.monotonic(), wasAsked: true, isFinal: true, tries: 1 })
  }

  /** The upstreams that are not to be asked now. */
  get spent(): Member[] {
    return [...this.#spent].filter(([member, one]) => !isBack(this.#clock, member, one)).map(([member]) => member)
  }

  /** Those that failed. */
  get members(): Iterable<Member> {
    return this.#spent.keys()
  }

  /** Those that failed, and may be asked again now. */
  get back(): Member[] {
    const isHoped = ([member, one]: [Member, Spent]) => this.#mayHope(member) && isBack(this.#clock, member, one)
    return [...this.#spent].filter(isHoped).map(([member]) => member)
  }

  /** Whether one of those that failed may be asked again in time. Each of these is told that it is waited for. */
  hopes(isUnderWay: (member: Member) => boolean = () => false): boolean {
    let hopes = false
    for (const member of this.#spent.keys()) {
      if (isUnderWay(member) || !this.#mayHope(member)) continue
      member.health.waitedFor()
      hopes = true
    }
    return hopes
  }

  #mayHope(member: Member): boolean {
    const one = this.#spent.get(member)
    if (this.#isDenied || this.#clock.monotonic() >= this.#giveUpAt || one?.isFinal !== false) return false
    return one.wasThrottled ? isInTime(member) : member.health.mayComeBack
  }
}

const isInTime = ({ health }: Member): boolean => health.state('').state === 'ready' || health.coolsInTime

function isBack(clock: Clock, member: Member, { at, wasAsked, wasThrottled, isFinal }: Spent): boolean {
  if (isFinal) return false
  if (wasThrottled) return isInTime(member)
  if (wasAsked) return member.health.isBackSince(at)
  return clock.monotonic() - at >= lookAgainMs && member.health.mayComeBack
}
