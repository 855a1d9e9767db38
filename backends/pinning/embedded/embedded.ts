// Our own disk as a provider: blocks as plain files, on the platter before they count, never evicted. A pin is one small
// file that lists its blocks; unpinning frees those that no other pin lists.
import { randomBytes } from 'node:crypto'
import { statfs, unlink } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { blockKey } from '../../../src/core/block.ts'
import { createFilesAtHand } from '../../../src/core/disk/at-hand.ts'
import { codeOf } from '../../../src/core/disk/files.ts'
import { remedyOf } from '../../../src/core/disk/remedies.ts'
import { Failure } from '../../../src/core/failure.ts'
import type { LeftStore, LocalStore, Provider, ProviderContext, ProviderKind, Upload } from '../contract.ts'
import { createBlockFiles } from './block-files.ts'
import { createDisk } from './disk.ts'
import { blocksIn, foldersLeft, note, usualFolder } from './folders.ts'
import { createFreeing } from './freeing.ts'
import { createPinLock } from './pin-lock.ts'
import { createPins } from './pins.ts'
import { createShards, shardName } from './shards.ts'

const options = z.strictObject({
  path: z.string().min(1).optional().describe('The folder; by default `pins` in the data folder.'),
})

export interface EmbeddedProvider extends Provider {
  readonly store: LocalStore
}

const leastFreeBytes = 64 * 1024 * 1024

export const embedded: ProviderKind<typeof options> = { use: 'embedded', options, left, create: createEmbedded }

type Options = z.output<typeof options>

const rootOf = ({ path }: Options, data: string): string => resolve(path ?? usualFolder(data))

async function left(data: string, configured: readonly Options[]): Promise<readonly LeftStore<Options>[]> {
  const known = configured.map((one) => rootOf(one, data))
  return (await foldersLeft(data, known)).map((path) => ({ options: { path }, place: `the folder ${path}` }))
}

export function createEmbedded(settings: Options, context: ProviderContext): EmbeddedProvider {
  const { name, data, folders, company, clock, blocksBelow } = context
  const root = rootOf(settings, data)
  const blocks = blocksIn(root)
  const disk = createDisk(root)
  const pins = createPins({ roots: join(root, 'roots'), freed: join(root, 'freed') }, disk)
  const folder = folders.enter(root)
  const pinLock = folder.part(createPinLock)

  const shards = folder.part(createShards)
  const files = createBlockFiles(blocks, disk, shards)
  const { shardOf, read, has, linkAll, writeAll, areWhole } = files
  const { free, drop } = createFreeing({ pins, files, blocksBelow })
  const seen = createFilesAtHand(blocks, clock)
  // The owner pins, so that another process cannot know of a shard that was made since.
  const isGuest = company !== undefined && !company.isOwner
  let finished: Promise<void> | undefined
  const mayHave = async (key: string): Promise<boolean> =>
    isGuest || (await shards.has(shardName(key), clock.monotonic()))

  async function keep(upload: Upload, signal: AbortSignal, keys: Set<string>): Promise<CID> {
    const ready = await upload.files?.()
    // A pin that breaks off drops all of them, also those that a process linked before it was killed.
    for (const { key } of ready ?? []) keys.add(key)
    const proved = new Set<string>()
    const linked = { all: keys, proved }
    const areAllWhole = () => areWhole(new Set([...keys].filter((key) => !proved.has(key))), signal)
    const isLinked = ready !== undefined && (await linkAll(ready, linked, signal)) && keys.has(blockKey(upload.cid))
    // A linked file may have rotted.
    if (!isLinked || !(await areAllWhole())) {
      await writeAll(upload, linked, signal)
      if (!(await areAllWhole())) throw unlike(name, root)
    }
    await Promise.all([...new Set([...keys].map(shardOf))].map(disk.sync))
    signal.throwIfAborted()
    await note(root, data, disk)
    const at = new Date(clock.now()).toISOString()
    await pins.write(upload.cid, { cid: upload.cid.toString(), bytes: upload.bytes, at, blocks: [...keys] })
    return upload.cid
  }

  /** What a process that was killed left to be freed. */
  async function finishFreeing(): Promise<void> {
    if ((await pins.freed()).length > 0) await pinLock.alone(() => drop(new Set()))
  }

  async function pin(upload: Upload, signal: AbortSignal): Promise<CID> {
    const keys = new Set<string>()
    await disk.tidy()
    // Once; an upload does not fail with it.
    await (finished ??= finishFreeing().catch(() => {}))
    try {
      return await pinLock.together(() => keep(upload, signal, keys))
    } catch (error) {
      await pinLock.alone(() => drop(keys)).catch(() => {})
      throw error
    }
  }

  const guarded = async <T>(what: string, work: () => Promise<T>): Promise<T> => {
    try {
      return await work()
    } catch (error) {
      throw error instanceof Failure || codeOf(error) === undefined ? error : outage(name, what, root, error)
    }
  }

  return {
    name,
    traits: { takesBytes: true, local: true },
    pin: (upload, signal) => guarded('write', () => pin(upload, signal)),
    unpin: (cid, signal) => guarded('delete', () => pinLock.alone(() => free(cid, signal))),
    status: (cid, signal) =>
      guarded('read', async () => {
        signal.throwIfAborted()
        return (await pins.read(cid)) ? 'pinned' : 'absent'
      }),
    probe: () =>
      guarded('write', () =>
        pinLock.together(async () => {
          await disk.folder(blocks)
          const file = join(root, 'probe')
          await disk.write(file, randomBytes(16))
          await unlink(file).catch(() => {})
          const { bavail, bsize } = await statfs(root)
          if (bavail * bsize < leastFreeBytes) throw Object.assign(new Error('no room'), { code: 'ENOSPC' })
        }),
      ),
    store: {
      get: (cid) =>
        guarded('read', async () => {
          const key = blockKey(cid)
          return (await mayHave(key)) ? read(key) : undefined
        }),
      lacks(cid) {
        const key = blockKey(cid)
        return isGuest ? seen.isThere(files.fileOf(key)) === false : shards.lacks(shardName(key), clock.monotonic())
      },
      holds: (cid) => seen.isThere(files.fileOf(blockKey(cid))) === true,
      has: (cid) => guarded('read', () => has(blockKey(cid))),
    },
    close: () => pinLock.alone(async () => folder.leave()),
  }
}

function outage(name: string, what: string, root: string, cause: unknown): Failure {
  const code = codeOf(cause)
  const isFull = code === 'ENOSPC' || code === 'EDQUOT'
  const why = isFull
    ? 'the disk is full: make room or set another folder'
    : `${code ?? 'unknown reason'}; ${remedyOf(cause)}`
  return new Failure('broken', `provider ${name}: cannot ${what} in ${root}: ${why}`, {
    source: 'provider',
    cause,
    facts: { class: isFull ? 'quota' : 'transient' },
  })
}

const unlike = (name: string, root: string): Failure =>
  new Failure('broken', `provider ${name}: data written in ${root} reads back changed; check the disk`, {
    source: 'provider',
    facts: { class: 'transient' },
  })
