// The file operations of the disk tier: so many at once, each within its time, and none that goes on behind the end.
import type { Clock } from '../../src/core/clock.ts'
import { withDeadline } from '../../src/core/deadline.ts'
import { Failure } from '../../src/core/failure.ts'
import { createGate } from '../../src/core/gate.ts'
import type { Call } from './contract.ts'

export interface DiskCalls {
  readonly read: DiskCall
  readonly write: DiskCall
  /** Closes, behind what was given up and goes on; waits a moment for it. Afterwards nothing of ours touches the folder. */
  end(close: () => Promise<void>): Promise<void>
}

type DiskCall = <T>(
  signal: AbortSignal | undefined,
  told: Call | undefined,
  work: (own: AbortSignal) => Promise<T>,
) => Promise<T>

export type DiskCallsOptions = {
  readonly name: string
  readonly clock: Clock
  /** Called when an operation begins; what it answers, when it has ended. */
  readonly began: () => () => void
  readonly outage: (error: unknown) => Failure
}

export const diskReadMs = 3000
export const diskWriteMs = 10_000
const closeMs = 2000
// More would only stand in a line of the runtime's, before its few threads.
const filesAtOnce = { reads: 16, writes: 16 } as const
const filesInLine = 8192
const lineMs = 5000

export function createDiskCalls({ name, clock, began, outage }: DiskCallsOptions): DiskCalls {
  const underWay = new Set<Promise<void>>()

  /**
   * Its time begins when it leaves our line. A stuck disk cannot be aborted: the caller is let go, and the gate holds the
   * slot until the call comes back.
   */
  function callsOf(most: number, ms: number): DiskCall {
    const patience = { ms: lineMs, clock }
    const gate = createGate({ most, inLine: filesInLine, full: () => tooMany(name), patience })
    return async (signal, told, work) => {
      const leave = await gate.enter(signal)
      const ended = began()
      told?.begun?.()
      let over: Promise<unknown> | undefined
      try {
        return await withDeadline({ ms, clock, signal, late: () => silent(name, ms) }, (own) => {
          const doing = work(own)
          over = doing
          return doing
        })
      } catch (error) {
        if (error instanceof Failure || signal?.aborted) throw error
        throw outage(error)
      } finally {
        const end = () => {
          ended()
          leave()
          underWay.delete(ending)
        }
        const ending: Promise<void> = Promise.resolve(over).then(end, end)
        underWay.add(ending)
      }
    }
  }

  return {
    read: callsOf(filesAtOnce.reads, diskReadMs),
    write: callsOf(filesAtOnce.writes, diskWriteMs),
    async end(close) {
      const rest = async () => {
        await Promise.allSettled(underWay)
        await close()
      }
      await withDeadline({ ms: closeMs, clock, late: () => silent(name, closeMs) }, rest).catch(() => {})
    },
  }
}

export const silent = (name: string, ms: number): Failure =>
  new Failure('timeout', `tier ${name}: the disk did not answer within ${ms} ms`, { source: 'tier' })

export const tooMany = (name: string): Failure =>
  new Failure('overloaded', `tier ${name}: too many file operations wait for the disk`, { source: 'tier' })
