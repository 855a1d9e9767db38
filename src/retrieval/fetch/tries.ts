// Decides which upstreams may be asked twice for one thing. An upstream that was down at its turn, or broke off before its
// first byte, is asked again when it is well: while the client has time, a moment's outage is no reason for an error.
import type { Clock } from '../../core/clock.ts'
import { isFailure } from '../../core/failure.ts'
import type { Member } from '../upstreams/pool.ts'

export interface Tries {
  /** This upstream brought nothing, because of this error. */
  failed(member: Member, error: unknown): void
  /** This upstream is not asked again, however its answer ends. */
  over(member: Member): void
  /** The upstreams that are not to be asked now. */
  readonly spent: readonly Member[]
  /** Whether one of the spent upstreams may be asked again in time. Each of these is told that it is waited for. */
  hopes(): boolean
  /** Resolves when this upstream may be asked again, rejects with `error` when there is no hope of that. */
  untilBack(member: Member, error: unknown, signal: AbortSignal): Promise<void>
}

type Spent = {
  readonly at: number
  readonly wasAsked: boolean
  /** The upstream sent a time to retry: it is not asked before. */
  readonly wasThrottled?: boolean
  readonly isFinal: boolean
  readonly tries: number
}

export const lookAgainMs = 200
const mostTries = 6

export function createTries({ clock, giveUpAt }: { readonly clock: Clock; readonly giveUpAt: number }): Tries {
  const spent = new Map<Member, Spent>()
  // One that was asked does not have it: the client gets a quick answer.
  let isDenied = false
  const denied = Promise.withResolvers<void>()

  const isInTime = ({ health }: Member): boolean => health.state('').state === 'ready' || health.coolsInTime

  function isBack(member: Member, { at, wasAsked, wasThrottled, isFinal }: Spent): boolean {
    if (isFinal) return false
    if (wasThrottled) return isInTime(member)
    if (wasAsked) return member.health.isBackSince(at)
    return clock.monotonic() - at >= lookAgainMs && member.health.mayComeBack
  }

  const mayHope = (member: Member): boolean => {
    const one = spent.get(member)
    if (isDenied || clock.monotonic() >= giveUpAt || one?.isFinal !== false) return false
    return one.wasThrottled ? isInTime(member) : member.health.mayComeBack
  }

  function hopesFor(member: Member): boolean {
    if (!mayHope(member)) return false
    member.health.waitedFor()
    return true
  }

  return {
    failed(member, error) {
      const tries = (spent.get(member)?.tries ?? 0) + 1
      const wasAsked = !isFailure(error, 'unavailable')
      const wasThrottled = isFailure(error, 'throttled')
      const wasSilent = isFailure(error, 'timeout') && error.facts.isSearching !== true
      const mayPass = wasThrottled || isFailure(error, 'broken') || wasSilent
      const isFinal = tries >= mostTries || (wasAsked && !mayPass)
      if (isFailure(error, 'not-found')) {
        isDenied = true
        denied.resolve()
      }
      spent.set(member, { at: clock.monotonic(), wasAsked, wasThrottled, isFinal, tries })
    },
    over(member) {
      spent.set(member, { at: clock.monotonic(), wasAsked: true, isFinal: true, tries: 1 })
    },
    get spent() {
      return [...spent].filter(([member, one]) => !isBack(member, one)).map(([member]) => member)
    },
    hopes: () => [...spent.keys()].filter(hopesFor).length > 0,
    async untilBack(member, error, signal) {
      for (;;) {
        const one = spent.get(member)
        if (!one || !hopesFor(member)) throw error
        if (isBack(member, one)) return
        await Promise.race([clock.sleep(lookAgainMs, signal), denied.promise])
      }
    },
  }
}
