// Blocks on a disk of this machine, in segments. Several processes may share the folder.
import { join, resolve } from 'node:path'
import { z } from 'zod'
import { type Clock, withDeadline } from '../../src/core/clock.ts'
import { createAtOnce } from '../../src/core/disk/at-once.ts'
import { remedyOf, tryToWrite } from '../../src/core/disk/files.ts'
import { Failure } from '../../src/core/failure.ts'
import { createGate } from '../../src/core/gate.ts'
import { size } from '../../src/core/units.ts'
import type { Call, Tier, TierKind } from './contract.ts'
import { createSegments } from './disk-segments.ts'

const options = z.strictObject({
  maxBytes: size()
    .prefault('10GiB')
    .refine((bytes) => bytes > 0, { error: 'expected more than 0; to have no disk tier, leave it out of the list' })
    .describe('Room on the disk. Beyond it the oldest goes, but for blocks that were read since.'),
  path: z.string().min(1).optional().describe('The folder. By default `cache` in the data folder.'),
})

export const disk: TierKind<typeof options> = {
  use: 'disk',
  options,
  create: ({ maxBytes, path: own }, { name, data, company, clock }) => {
    const path = own === undefined ? join(data, 'cache') : resolve(own)
    return createDiskTier({ name, path, maxBytes, tells: company?.isOwner !== false, clock })
  },
}

type DiskOptions = {
  readonly name: string
  readonly path: string
  readonly maxBytes: number
  /** How full it is: one of several processes says it. */
  readonly tells: boolean
  readonly clock: Clock
}

function createDiskTier({ name, path, maxBytes, tells, clock }: DiskOptions): Tier {
  const atOnce = createAtOnce(path, clock)
  const explained = (error: unknown) => (error instanceof Failure ? error : outage(name, path, error))
  const calls = createDiskCalls({ name, clock, began: atOnce.began, outage: explained })
  const segments = createSegments({
    ...{ path, maxBytes, clock, atOnce },
    ...{
      writeMs: diskWriteMs,
      late: () => silent(name, diskWriteMs),
      full: () => tooMany(name),
      closing: () => closing(name),
    },
  })
  let ending: Promise<void> | undefined

  const putAll: NonNullable<Tier['putAll']> = (blocks, signal, call) =>
    new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason)
      call?.begun?.()
      const leave = () => reject(signal?.reason)
      signal?.addEventListener('abort', leave, { once: true })
      let missing = blocks.length
      const settle = (error?: unknown) => {
        if (error !== undefined) reject(explained(error))
        if (--missing > 0) return
        signal?.removeEventListener('abort', leave)
        resolve()
      }
      for (const { cid, bytes } of blocks) segments.put(cid, bytes, settle)
    })

  return {
    name,
    traits: { persistent: true, shared: false, trusted: false },
    deadlineMs: diskReadMs,
    announces: true,
    get: (cid, signal, told) => calls.read(signal, told, () => segments.get(cid)),
    atHand: segments.atHand,
    lacks: segments.lacks,
    holds: segments.holds,
    put: (cid, bytes, signal, call) => putAll([{ cid, bytes }], signal, call),
    putAll,
    has: (cid, signal, told) => calls.read(signal, told, () => segments.has(cid)),
    delete: (cid, signal, told) => calls.write(signal, told, () => segments.delete(cid)),
    probe: (signal) => calls.write(signal, undefined, () => tryToWrite(path)),
    ...(tells && { usage: () => ({ bytes: segments.bytes, blocks: segments.blocks, limitBytes: maxBytes }) }),
    close() {
      ending ??= calls.end(segments.close)
      return ending
    },
  }
}

const closing = (name: string): Failure => new Failure('unavailable', `tier ${name} is closing`, { source: 'tier' })

const roomier: Readonly<Record<string, string>> = {
  ENOSPC: 'make room on the disk, or lower its maxBytes',
  EDQUOT: 'raise the quota, or lower its maxBytes',
}

function outage(name: string, path: string, cause: unknown): Failure {
  const code = cause instanceof Error && 'code' in cause ? String(cause.code) : 'an unknown error'
  return new Failure('upstream-error', `tier ${name}: ${code} in ${path}; ${roomier[code] ?? remedyOf(cause)}`, {
    source: 'tier',
    cause,
  })
}

interface DiskCalls {
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

type DiskCallsOptions = {
  readonly name: string
  readonly clock: Clock
  /** Called when an operation begins; what it answers, when it has ended. */
  readonly began: () => () => void
  readonly outage: (error: unknown) => Failure
}

const diskReadMs = 3000
const diskWriteMs = 10_000
const closeMs = 2000
// More would only stand in a line of the runtime's, before its few threads.
const filesAtOnce = { reads: 16, writes: 16 } as const
const filesInLine = 8192
const lineMs = 5000

function createDiskCalls({ name, clock, began, outage }: DiskCallsOptions): DiskCalls {
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

const silent = (name: string, ms: number): Failure =>
  new Failure('timeout', `tier ${name}: the disk did not answer within ${ms} ms`, { source: 'tier' })

const tooMany = (name: string): Failure =>
  new Failure('overloaded', `tier ${name}: too many file operations wait for the disk`, { source: 'tier' })
