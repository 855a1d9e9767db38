// Our own disk as a provider: blocks as plain files, on the platter before they count, never evicted. A pin is one small
// file that lists its blocks; unpinning frees those that no other pin lists.
import { randomBytes } from 'node:crypto'
import { access, link, readFile, rename, rm, statfs, unlink } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { type Block, blockKey, isIdentity, maxBlockBytes, proves } from '../../src/block.ts'
import { Failure } from '../../src/failure.ts'
import type { LocalStore, Provider, ProviderContext, ProviderKind, Upload } from './contract.ts'
import { createDisk } from './embedded-disk.ts'
import { createPins } from './embedded-pins.ts'
import { createTurns } from './embedded-turns.ts'

const options = z.strictObject({
  path: z.string().min(1).optional().describe('The folder; by default `pins` in the data folder.'),
})

export interface EmbeddedProvider extends Provider {
  readonly store: LocalStore
}

const writesAtOnce = 8
const leastFreeBytes = 64 * 1024 * 1024

export const embedded: ProviderKind<typeof options> = { use: 'embedded', options, create: createEmbedded }

export function createEmbedded(
  { path }: z.output<typeof options>,
  { name, data, clock }: ProviderContext,
): EmbeddedProvider {
  const root = path === undefined ? join(data, 'pins') : resolve(path)
  const blocks = join(root, 'blocks')
  const disk = createDisk(root)
  const pins = createPins(join(root, 'roots'), disk)
  const turns = createTurns()

  const shardOf = (key: string): string => join(blocks, key.slice(-2))
  const fileOf = (key: string): string => join(shardOf(key), key)

  async function read(key: string): Promise<Uint8Array | undefined> {
    const bytes = await orIfGone(readFile(fileOf(key)), undefined)
    return bytes && bytes.byteLength <= maxBlockBytes ? bytes : undefined
  }

  /** A second name for what already lies on the platter, or a copy where the file system has no such names. */
  async function place({ cid, bytes }: Block, from: string | undefined): Promise<void> {
    const file = fileOf(blockKey(cid))
    const there = await read(blockKey(cid))
    if (there && proves(cid, there)) return
    if (from !== undefined) {
      const temporary = await disk.temporary()
      try {
        await link(from, temporary)
        await rename(temporary, file)
        return
      } catch (error) {
        await rm(temporary, { force: true }).catch(() => {})
        if (!cannotLink.has(codeOf(error) ?? '')) throw error
      }
    }
    await disk.write(file, bytes)
  }

  async function keep(upload: Upload, signal: AbortSignal, keys: Set<string>): Promise<CID> {
    const touched = new Set<string>()
    const writing = new Set<Promise<void>>()
    try {
      for await (const block of upload.blocks(signal)) {
        signal.throwIfAborted()
        if (isIdentity(block.cid)) continue
        const key = blockKey(block.cid)
        if (keys.has(key)) continue
        keys.add(key)
        touched.add(shardOf(key))
        await disk.folder(shardOf(key))
        const write = place(block, upload.fileOf?.(block.cid)).finally(() => writing.delete(write))
        writing.add(write)
        write.catch(() => {})
        if (writing.size >= writesAtOnce) await Promise.race(writing)
      }
      await Promise.all(writing)
    } finally {
      await Promise.allSettled(writing)
    }
    await Promise.all([...touched].map(disk.sync))
    signal.throwIfAborted()
    const at = new Date(clock.now()).toISOString()
    await pins.write(upload.cid, { cid: upload.cid.toString(), bytes: upload.bytes, at, blocks: [...keys] })
    return upload.cid
  }

  /** The record goes first: a crash behind it leaves blocks that nobody names, never a pin that lacks one. */
  async function free(cid: CID): Promise<void> {
    const pin = await pins.read(cid)
    if (!pin) return
    await pins.remove(cid)
    await drop(new Set(pin.blocks))
  }

  /** Those of these blocks that no pin lists. */
  async function drop(keys: Set<string>): Promise<void> {
    for await (const { blocks: needed } of pins.all()) for (const key of needed) keys.delete(key)
    for (const key of keys) await rm(fileOf(key), { force: true })
  }

  async function pin(upload: Upload, signal: AbortSignal): Promise<CID> {
    const keys = new Set<string>()
    try {
      return await turns.together(() => keep(upload, signal, keys))
    } catch (error) {
      await turns.alone(() => drop(keys)).catch(() => {})
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
    unpin: (cid) => guarded('delete', () => turns.alone(() => free(cid))),
    status: (cid) => guarded('read', async () => ((await pins.read(cid)) ? 'pinned' : 'absent')),
    probe: () =>
      guarded('write', async () => {
        await disk.folder(blocks)
        const file = join(root, 'probe')
        await disk.write(file, randomBytes(16))
        await unlink(file).catch(() => {})
        const { bavail, bsize } = await statfs(root)
        if (bavail * bsize < leastFreeBytes) throw Object.assign(new Error('no room'), { code: 'ENOSPC' })
      }),
    store: {
      get: (cid) => guarded('read', () => read(blockKey(cid))),
      has: (cid) =>
        guarded('read', () =>
          orIfGone(
            access(fileOf(blockKey(cid))).then(() => true),
            false,
          ),
        ),
    },
    close: () => turns.alone(async () => {}),
  }
}

const cannotLink = new Set(['EXDEV', 'EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK', 'EACCES', 'ENOENT'])

async function orIfGone<T>(work: Promise<T>, otherwise: T): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return otherwise
    throw error
  }
}

function codeOf(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined
}

function outage(name: string, what: string, root: string, cause: unknown): Failure {
  const code = codeOf(cause)
  const isFull = code === 'ENOSPC' || code === 'EDQUOT'
  const why = isFull ? 'the disk is full: make room or set another folder' : (code ?? 'unknown reason')
  return new Failure('broken', `provider ${name}: cannot ${what} in ${root}: ${why}`, {
    source: 'provider',
    cause,
    facts: { class: isFull ? 'quota' : 'transient' },
  })
}
