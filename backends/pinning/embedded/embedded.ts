// Our own disk as a provider: blocks as plain files, on the platter before they count, never evicted. A pin is one small
// file that lists its blocks; unpinning frees those that no other pin lists.
import { randomBytes } from 'node:crypto'
import { rm, statfs, unlink } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { blockKey, proves } from '../../../src/core/block.ts'
import { codec } from '../../../src/core/cid.ts'
import { remedyOf } from '../../../src/core/disk/remedies.ts'
import { Failure } from '../../../src/core/failure.ts'
import { codeOf } from '../../../src/core/files.ts'
import type { LeftStore, LocalStore, Provider, ProviderContext, ProviderKind, Upload } from '../contract.ts'
import { createBlockFiles } from './block-files.ts'
import { createDisk } from './disk.ts'
import { blocksIn, foldersLeft, note, usualFolder } from './folders.ts'
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
  const { name, data, folders, clock, blocksBelow } = context
  const root = rootOf(settings, data)
  const blocks = blocksIn(root)
  const disk = createDisk(root)
  const pins = createPins({ roots: join(root, 'roots'), freed: join(root, 'freed') }, disk)
  const folder = folders.enter(root)
  const pinLock = folder.part(createPinLock)

  const shards = folder.part(createShards)
  const { shardOf, fileOf, read, has, linkAll, writeAll, areWhole } = createBlockFiles(blocks, disk, shards)
  const mayHave = (key: string): Promise<boolean> => shards.has(shardName(key), clock.monotonic())

  async function keep(upload: Upload, signal: AbortSignal, keys: Set<string>): Promise<CID> {
    const files = await upload.files?.()
    // A pin that breaks off drops all of them, also those that a process linked before it was killed.
    for (const { key } of files ?? []) keys.add(key)
    const proved = new Set<string>()
    const linked = { all: keys, proved }
    const areAllWhole = () => areWhole(new Set([...keys].filter((key) => !proved.has(key))), signal)
    const isLinked = files !== undefined && (await linkAll(files, linked, signal)) && keys.has(blockKey(upload.cid))
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

  /** The record goes first: a crash then leaves blocks that a later call frees, and never a pin that lacks one. */
  async function free(cid: CID, signal: AbortSignal): Promise<void> {
    const pin = await pins.read(cid)
    if (pin) await pins.free(cid)
    await drop(pin ? new Set(pin.blocks) : await leftBelow(cid, signal))
  }

  /** What lies here without a record, parents first: a process was killed in the middle of a pin. */
  async function leftBelow(root: CID, signal: AbortSignal): Promise<Set<string>> {
    if (!(await has(blockKey(root)))) return new Set()
    const keys = new Set<string>([blockKey(root)])
    const isNew = (cid: CID): boolean => !keys.has(blockKey(cid))
    const ahead = [root]
    for (let cid = ahead.pop(); cid; cid = ahead.pop()) {
      // It may be a part of a large pin: no upload is pinned meanwhile.
      signal.throwIfAborted()
      if (cid.code === codec.raw) continue
      const bytes = await read(blockKey(cid))
      if (!bytes || !proves(cid, bytes)) continue
      for (const next of await blocksBelow({ cid, bytes }, isNew)) {
        keys.add(blockKey(next))
        ahead.push(next)
      }
    }
    return keys
  }

  /** Removes the blocks that no pin lists, and what an earlier call left of that. */
  async function drop(keys: Set<string>): Promise<void> {
    const freed = await pins.freed()
    for (const { blocks } of freed) for (const key of blocks) keys.add(key)
    if (keys.size === 0 && freed.length === 0) return
    for await (const { blocks: needed } of pins.all()) for (const key of needed) keys.delete(key)
    // Parents last: what a kill leaves is found below them again.
    for (const key of [...keys].reverse()) await rm(fileOf(key), { recursive: true, force: true })
    for (const { end } of freed) await end()
  }

  /** What a process that was killed left of it. Once, and an upload does not fail with it. */
  let finished: Promise<void> | undefined
  const finishFreeing = async (): Promise<void> => {
    if ((await pins.freed()).length > 0) await pinLock.alone(() => drop(new Set()))
  }

  async function pin(upload: Upload, signal: AbortSignal): Promise<CID> {
    const keys = new Set<string>()
    await disk.tidy()
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
      lacks: (cid) => shards.lacks(shardName(blockKey(cid)), clock.monotonic()),
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
