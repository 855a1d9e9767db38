// Blocks as plain files, `<path>/<shard>/<key>`: nothing to rebuild at start, readable with ls. A file appears by rename,
// whole or not at all; it is not synced, because what a power cut spoils does not hash to its name and is dropped on read.
import { randomBytes } from 'node:crypto'
import { rm, utimes } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { z } from 'zod'
import { blockKey, maxBlockBytes } from '../../src/core/block.ts'
import type { Clock } from '../../src/core/clock.ts'
import { createFilesAtHand } from '../../src/core/disk/at-hand.ts'
import type { FolderCompany } from '../../src/core/disk/company.ts'
import { orIfGone } from '../../src/core/disk/files.ts'
import { createKnownNames, type KnownNames } from '../../src/core/disk/known-names.ts'
import { createNewFiles, type NewFiles } from '../../src/core/disk/new-files.ts'
import { openRegular, readOpened, readRegular, statRegular } from '../../src/core/disk/regular.ts'
import { remedyOf } from '../../src/core/disk/remedies.ts'
import type { SharedFolders } from '../../src/core/disk/shared-folders.ts'
import { Failure } from '../../src/core/failure.ts'
import { size } from '../../src/core/units.ts'
import type { Tier, TierKind } from './contract.ts'
import { createDiskCalls, diskReadMs } from './disk-calls.ts'
import { createGuestRoom, createRoom, shardOf } from './disk-room.ts'

const options = z.strictObject({
  maxBytes: size()
    .prefault('10GiB')
    .refine((bytes) => bytes > 0, { error: 'expected more than 0; to have no disk tier, leave it out of the list' })
    .describe('Room on the disk. What was used longest ago goes first. One process to a folder.'),
  path: z.string().min(1).optional().describe('The folder. By default `cache` in the data folder.'),
})

export const disk: TierKind<typeof options> = {
  use: 'disk',
  options,
  create: ({ maxBytes, path: own }, { name, data, folders, company, clock }) => {
    const path = own === undefined ? join(data, 'cache') : resolve(own)
    return createDiskTier({ name, path, maxBytes, folders, company, clock })
  },
}

type DiskOptions = {
  readonly name: string
  readonly path: string
  readonly maxBytes: number
  readonly folders: SharedFolders
  readonly company: FolderCompany | undefined
  readonly clock: Clock
}

/** One for all tiers in a folder: the tier of the gateway before a reload writes what this one must not take for absent. */
const namesIn = (path: string): KnownNames => createKnownNames(path, shardOf)

function createDiskTier({ name, path, maxBytes, folders, company, clock }: DiskOptions): Tier {
  const folder = folders.enter(path)
  const names = folder.part(namesIn)
  const fileOf = (key: string): string => join(path, shardOf(key), key)
  const files = createFilesAtHand(path, clock)
  // What another process wrote a moment ago is known to the disk alone.
  const lacks = (key: string): boolean =>
    company ? files.isThere(fileOf(key)) === false : names.lacks(key, clock.monotonic())
  const room =
    company && !company.isOwner
      ? createGuestRoom((shard, bytes) => company.wrote(path, shard, bytes))
      : createRoom({ path, maxBytes, clock, onEvicted: names.forget })
  const endNotes = company?.isOwner ? company.onWrote(path, room) : undefined
  const newFiles = createNewFiles()
  const calls = createDiskCalls({ name, clock, began: files.began, outage: (error) => outage(name, path, error) })

  async function read(key: string): Promise<Uint8Array | undefined> {
    const file = fileOf(key)
    const opened = await openRegular(file, maxBlockBytes)
    if (!opened) {
      await rm(file, { recursive: true, force: true })
      return undefined
    }
    const { handle, bytes, mtimeMs } = opened
    try {
      const block = await readOpened(handle, bytes)
      const usedMs = await touch(mtimeMs, (now) => handle.utimes(now, now))
      files.note(key, block.byteLength, usedMs)
      return block
    } finally {
      await handle.close()
    }
  }

  /** True for one in the future, too: the clock was set back since. */
  const isOutdated = (usedMs: number): boolean => Math.abs(clock.now() - usedMs) > room.touchAfterMs

  /** Its time of change is its time of last use, noted now and then; a disk that is read-only still reads. */
  async function touch(usedMs: number, note: (now: Date) => Promise<void>): Promise<number> {
    if (!isOutdated(usedMs)) return usedMs
    const now = clock.now()
    await note(new Date(now)).catch(() => {})
    return now
  }

  /** Of a file that was read at once: the reader does not wait until it is noted. */
  function noteUse(key: string, bytes: number): void {
    const usedMs = files.usedMs(key)
    if (usedMs === undefined || !isOutdated(usedMs)) return
    files.note(key, bytes, clock.now())
    const file = fileOf(key)
    calls.write(undefined, undefined, () => touch(usedMs, (now) => utimes(file, now, now))).catch(() => {})
  }

  async function write(key: string, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    const file = fileOf(key)
    const there = lacks(key) ? undefined : await like(file, bytes)
    if (there?.isRotten) return newFiles.write(file, bytes, signal)
    if (there) return void (await touch(there.usedMs, (now) => utimes(file, now, now)))
    const reservation = await room.reserve(shardOf(key), bytes.byteLength)
    if (!reservation) return
    let kept = false
    try {
      names.add(key)
      await newFiles.write(file, bytes, signal)
      names.add(key)
      kept = true
      files.note(key, bytes.byteLength, clock.now())
    } finally {
      reservation.landed(kept)
    }
  }

  return {
    name,
    traits: { persistent: true, shared: false, trusted: false },
    deadlineMs: diskReadMs,
    announces: true,
    get: (cid, signal, told) => calls.read(signal, told, () => orIfGone(read(blockKey(cid)), undefined)),
    atHand(cid, options) {
      const key = blockKey(cid)
      const held = files.read(key, fileOf(key), options)
      if (held) noteUse(key, held.size)
      return held
    },
    lacks: (cid) => lacks(blockKey(cid)),
    holds: (cid) => files.isThere(fileOf(blockKey(cid))) === true,
    put: (cid, bytes, signal, told) => calls.write(signal, told, (own) => write(blockKey(cid), bytes, own)),
    has: (cid, signal, told) => calls.read(signal, told, () => isBlock(fileOf(blockKey(cid)))),
    delete: (cid, signal, told) =>
      calls.write(signal, told, () => {
        files.forget(blockKey(cid))
        return rm(fileOf(blockKey(cid)), { recursive: true, force: true })
      }),
    probe: (signal) => calls.write(signal, undefined, (own) => tryWriting(newFiles, path, own)),
    ...(!company || company.isOwner ? { usage: () => ({ bytes: room.bytes, limitBytes: maxBytes }) } : {}),
    async close() {
      endNotes?.()
      await room.close()
      await calls.end()
      newFiles.close()
      folder.leave()
    },
  }
}

/** A file of this size. What rotted there may not have been read since, so it is looked at. */
async function like(file: string, bytes: Uint8Array): Promise<{ usedMs: number; isRotten: boolean } | undefined> {
  const there = await orIfGone(statRegular(file, bytes.byteLength), undefined)
  if (there?.size !== bytes.byteLength) return undefined
  return { usedMs: there.mtimeMs, isRotten: !(await orIfGone(readRegular(file, there.size), undefined))?.equals(bytes) }
}

const isBlock = async (file: string): Promise<boolean> =>
  (await orIfGone(statRegular(file, maxBlockBytes), undefined)) !== undefined

async function tryWriting(newFiles: NewFiles, folder: string, signal: AbortSignal): Promise<void> {
  const file = join(folder, `probe-${randomBytes(6).toString('hex')}`)
  try {
    await newFiles.write(file, Buffer.alloc(1), signal)
  } finally {
    await rm(file, { force: true })
  }
}

const roomier: Readonly<Record<string, string>> = {
  ENOSPC: 'make room on the disk, or lower its maxBytes',
  EDQUOT: 'raise the quota, or lower its maxBytes',
}

function outage(name: string, path: string, cause: unknown): Failure {
  const code = cause instanceof Error && 'code' in cause ? String(cause.code) : 'an unknown error'
  return new Failure('broken', `tier ${name}: ${code} in ${path}; ${roomier[code] ?? remedyOf(cause)}`, {
    source: 'tier',
    cause,
  })
}
