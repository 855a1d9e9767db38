// Blocks on a disk of this machine, in segments. Several processes may share the folder.
import { join, resolve } from 'node:path'
import { z } from 'zod'
import { type Clock, orAborted, withDeadline } from '../../src/core/clock.ts'
import { createAtOnce } from '../../src/core/disk/at-once.ts'
import { remedyOf, tryToWrite } from '../../src/core/disk/files.ts'
import { Failure, type FailureKind } from '../../src/core/failure.ts'
import { size } from '../../src/core/units.ts'
import type { Tier, TierKind } from './contract.ts'
import { createSegments } from './disk-segments.ts'

const options = z.strictObject({
  maxBytes: size()
    .prefault('10GiB')
    .refine((bytes) => bytes > 0, { error: 'expected more than 0; to have no disk tier, leave it out of the list' })
    .describe(
      'Space on the disk. Beyond it, blocks that were requested once are evicted first, the oldest before others.',
    ),
  path: z.string().min(1).optional().describe('The folder. By default `cache` in the data folder.'),
})

export const disk: TierKind<typeof options> = {
  use: 'disk',
  options,
  create: ({ maxBytes, path: own }, { name, data, company, clock }) => {
    const path = own === undefined ? join(data, 'cache') : resolve(own)
    return createDiskTier({ name, path, maxBytes, reportsUsage: company?.isOwner !== false, clock })
  },
}

type DiskOptions = {
  readonly name: string
  readonly path: string
  readonly maxBytes: number
  /** How full it is: one of several processes says it. */
  readonly reportsUsage: boolean
  readonly clock: Clock
}

// More would fill the runtime's few threads, on which names are resolved too.
const concurrency = { reads: 12, writes: 4 } as const
/** Calls that a stuck disk still has, with those whose callers left. */
const maxInProgress = 8192
const closeMs = 2000
/** A slow disk is waited for: the block may be nowhere else. */
const readMs = 3000

function createDiskTier({ name, path, maxBytes, reportsUsage, clock }: DiskOptions): Tier {
  const atOnce = createAtOnce(path, clock)
  const failure = (kind: FailureKind, what: string) => new Failure(kind, `tier ${name}${what}`, { source: 'tier' })
  const segments = createSegments({
    path,
    maxBytes,
    clock,
    atOnce,
    closing: () => failure('unavailable', ' is closing'),
  })
  const inProgress = new Set<Promise<void>>()
  let ending: Promise<void> | undefined

  /** A call to a stuck disk cannot be aborted: its caller is let go. */
  async function work<T>(signal: AbortSignal | undefined, doing: () => Promise<T>): Promise<T> {
    signal?.throwIfAborted()
    if (inProgress.size >= maxInProgress) throw failure('overloaded', ': too many file operations wait for the disk')
    const ended = atOnce.began()
    const done = doing()
    const end = () => {
      ended()
      inProgress.delete(over)
    }
    const over = done.then(end, end)
    inProgress.add(over)
    try {
      return await orAborted(signal, done)
    } catch (error) {
      throw error instanceof Failure || signal?.aborted ? error : outage(name, path, error)
    }
  }

  const putAll = (blocks: Parameters<NonNullable<Tier['putAll']>>[0], signal?: AbortSignal) =>
    work(signal, () => segments.put(blocks))

  async function close(): Promise<void> {
    const rest = async () => {
      await Promise.allSettled(inProgress)
      await segments.close()
    }
    const late = () => failure('timeout', ': the disk did not answer')
    await withDeadline({ ms: closeMs, clock, late }, rest).catch(() => {})
  }

  return {
    name,
    traits: { persistent: true, shared: false, trusted: false },
    timeoutMs: readMs,
    concurrency,
    get: (cid, signal) => work(signal, () => segments.get(cid)),
    peek: segments.peek,
    hasNow: segments.hasNow,
    noteRead: segments.noteRead,
    put: (cid, bytes, signal) => putAll([{ cid, bytes }], signal),
    putAll,
    has: (cid, signal) => work(signal, () => segments.has(cid)),
    delete: (cid, signal) => work(signal, () => segments.delete(cid)),
    probe: (signal) => work(signal, () => tryToWrite(path)),
    ...(reportsUsage && { usage: () => ({ bytes: segments.bytes, blocks: segments.blocks, limitBytes: maxBytes }) }),
    close() {
      ending ??= close()
      return ending
    },
  }
}

const remedies: Readonly<Record<string, string>> = {
  ENOSPC: 'make room on the disk, or lower its maxBytes',
  EDQUOT: 'raise the quota, or lower its maxBytes',
}

function outage(name: string, path: string, cause: unknown): Failure {
  const code = cause instanceof Error && 'code' in cause ? String(cause.code) : 'an unknown error'
  const said = `tier ${name}: ${code} in ${path}; ${remedies[code] ?? remedyOf(cause)}`
  return new Failure('upstream-error', said, { source: 'tier', cause })
}
