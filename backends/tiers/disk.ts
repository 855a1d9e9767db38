// Blocks on a disk of this machine, in segments. Several processes may share the folder.
import { join, resolve } from 'node:path'
import { z } from 'zod'
import { type Clock, withDeadline } from '../../src/core/clock.ts'
import { createAtOnce } from '../../src/core/disk/at-once.ts'
import { remedyOf, tryToWrite } from '../../src/core/disk/files.ts'
import { Failure } from '../../src/core/failure.ts'
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
  create: ({ maxBytes, path: own }, { name, data, role, clock }) => {
    const path = own === undefined ? join(data, 'cache') : resolve(own)
    const isAlone = own === undefined && role === undefined
    return createDiskTier({ name, path, isAlone, maxBytes, reportsUsage: role?.isOwner !== false, clock })
  },
}

// More would fill the runtime's few threads, on which names are resolved too.
const concurrency = { reads: 12, writes: 4 } as const
/** A slow disk is waited for: the block may be nowhere else. */
const timeoutMs = 3000

type DiskOptions = {
  readonly name: string
  readonly path: string
  readonly isAlone: boolean
  readonly maxBytes: number
  /** True for the one process of a gateway that reports the usage. */
  readonly reportsUsage: boolean
  readonly clock: Clock
}

function createDiskTier({ name, path, isAlone, maxBytes, reportsUsage, clock }: DiskOptions): Tier {
  const atOnce = createAtOnce(path, clock)
  const closing = () => new Failure('unavailable', `tier ${name} is closing`, { source: 'tier' })
  const segments = createSegments({ path, isAlone, maxBytes, clock, atOnce })
  let isClosed = false
  const inProgress = new Set<Promise<unknown>>()

  /** A call to a stuck disk cannot be aborted: the guard lets its caller go, and keeps its place. */
  async function work<T>(signal: AbortSignal | undefined, doing: () => Promise<T>): Promise<T> {
    signal?.throwIfAborted()
    if (isClosed) throw closing()
    const ended = atOnce.began()
    const done = doing().catch((error: unknown) => {
      throw outage(name, path, error)
    })
    inProgress.add(done)
    return done.finally(() => {
      ended()
      inProgress.delete(done)
    })
  }

  return {
    name,
    traits: { persistent: true, shared: false, trusted: false },
    timeoutMs,
    concurrency,
    get: (cid, signal) => work(signal, () => segments.get(cid)),
    peek: segments.peek,
    hasNow: segments.hasNow,
    noteRead: segments.noteRead,
    put: (cid, bytes, signal) => work(signal, () => segments.put([{ cid, bytes }])),
    putAll: (blocks, signal) => work(signal, () => segments.put(blocks)),
    has: (cid, signal) => work(signal, () => segments.has(cid)),
    delete: (cid, signal) => work(signal, () => segments.delete(cid)),
    probe: (signal) => work(signal, () => tryToWrite(path)),
    ...(reportsUsage && { usage: () => ({ bytes: segments.bytes, blocks: segments.blocks, limitBytes: maxBytes }) }),
    async close() {
      isClosed = true
      const end = async () => {
        await Promise.allSettled(inProgress)
        await segments.close()
      }
      await withDeadline({ ms: timeoutMs, clock, late: closing }, end).catch(() => {})
    },
  }
}

const remedies: Readonly<Record<string, string>> = {
  ENOSPC: 'free space on the disk, or lower its maxBytes',
  EDQUOT: 'raise the quota, or lower its maxBytes',
}

function outage(name: string, path: string, cause: unknown): Failure {
  const code = cause instanceof Error && 'code' in cause ? String(cause.code) : 'an unknown error'
  const said = `tier ${name}: ${code} in ${path}; ${remedies[code] ?? remedyOf(cause)}`
  return new Failure('upstream-error', said, { source: 'tier', cause })
}
