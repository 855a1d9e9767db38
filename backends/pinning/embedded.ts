// Our own disk as a provider: blocks as plain files, on the platter before they count, never evicted. A pin is one small
// file that lists its blocks; unpinning frees those that no other pin lists.
import { createHash } from 'node:crypto'
import { mkdir, open, readdir, readFile, rename, rm, statfs, unlink } from 'node:fs/promises'
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { blockKey, isIdentity, maxBlockBytes, proves } from '../../src/block.ts'
import { Failure } from '../../src/failure.ts'
import type { Provider, ProviderContext, ProviderKind } from './contract.ts'

const options = z.strictObject({
  path: z.string().min(1).optional().describe('The folder; by default `pins` in the data folder.'),
})

/** What the gateway reads pins back with; keyed like every tier, so v0 and v1 names of the same bytes are one. */
export interface EmbeddedProvider extends Provider {
  read(cid: CID): Promise<Uint8Array | undefined>
  holds(cid: CID): Promise<boolean>
}

type Pin = { readonly cid: string; readonly bytes: number; readonly at: string; readonly blocks: readonly string[] }

const writesAtOnce = 8
const leastFreeBytes = 64 * 1024 * 1024

export const embedded: ProviderKind<typeof options> = { use: 'embedded', options, create: createEmbedded }

export function createEmbedded(
  { path }: z.output<typeof options>,
  { name, data, clock }: ProviderContext,
): EmbeddedProvider {
  const root = path ?? join(data, 'pins')
  const blocks = join(root, 'blocks')
  const records = join(root, 'roots')
  const made = new Set<string>()
  let written = 0
  // Pinning and unpinning take turns: a block must not be freed for one pin while another is counting on it.
  let turn: Promise<unknown> = Promise.resolve()

  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const done = turn.then(work)
    turn = done.catch(() => {})
    return done
  }
  const fileOf = (key: string): string => join(blocks, key.slice(-2), key)
  const recordOf = (cid: CID): string => join(records, `${blockKey(cid)}.json`)

  async function folder(path: string): Promise<void> {
    if (made.has(path)) return
    await mkdir(path, { recursive: true })
    made.add(path)
  }

  /** Beside, onto the platter, into place: there is a whole file or none, whenever the power goes. */
  async function writeDurably(file: string, bytes: Uint8Array): Promise<void> {
    const temporary = `${file}.${process.pid}.${written++}.tmp`
    try {
      const handle = await open(temporary, 'wx')
      try {
        await handle.writeFile(bytes)
        await handle.sync()
      } finally {
        await handle.close()
      }
      await rename(temporary, file)
    } catch (error) {
      await rm(temporary, { force: true }).catch(() => {})
      throw error
    }
  }

  async function read(key: string): Promise<Uint8Array | undefined> {
    const bytes = await readFile(fileOf(key)).catch((error: unknown) => {
      if (codeOf(error) === 'ENOENT') return undefined
      throw outage(name, 'read', root, error)
    })
    return bytes && bytes.byteLength <= maxBlockBytes ? bytes : undefined
  }

  async function keep(upload: Parameters<Provider['pin']>[0], signal: AbortSignal): Promise<CID> {
    await folder(records)
    const keys: string[] = []
    const touched = new Set<string>()
    const writing = new Set<Promise<void>>()
    for await (const { cid, bytes } of upload.blocks(signal)) {
      signal.throwIfAborted()
      if (isIdentity(cid)) continue
      const key = blockKey(cid)
      keys.push(key)
      const there = await read(key)
      if (there && proves(cid, there)) continue
      const within = join(blocks, key.slice(-2))
      await folder(within)
      touched.add(within)
      const write = writeDurably(fileOf(key), bytes).finally(() => writing.delete(write))
      writing.add(write)
      if (writing.size >= writesAtOnce) await Promise.race(writing)
    }
    await Promise.all(writing)
    await Promise.all([...touched, blocks].map(syncFolder))
    const pin: Pin = {
      cid: upload.cid.toString(),
      bytes: upload.bytes,
      at: new Date(clock.now()).toISOString(),
      blocks: keys,
    }
    await writeDurably(recordOf(upload.cid), Buffer.from(JSON.stringify(pin)))
    await syncFolder(records)
    return upload.cid
  }

  async function pins(): Promise<Pin[]> {
    const names = (await readdir(records).catch(() => [])).filter((file) => file.endsWith('.json'))
    return Promise.all(names.map(async (file) => JSON.parse(await readFile(join(records, file), 'utf8')) as Pin))
  }

  const wrapped = async <T>(what: string, work: () => Promise<T>): Promise<T> => {
    try {
      return await work()
    } catch (error) {
      throw error instanceof Failure || codeOf(error) === undefined ? error : outage(name, what, root, error)
    }
  }

  return {
    name,
    traits: { takesBytes: true, local: true },
    pin: (upload, signal) => wrapped('write', () => inTurn(() => keep(upload, signal))),
    unpin: (cid) =>
      wrapped('delete', () =>
        inTurn(async () => {
          const record = await readFile(recordOf(cid), 'utf8').catch(() => undefined)
          if (record === undefined) return
          await unlink(recordOf(cid))
          await syncFolder(records)
          const needed = new Set((await pins()).flatMap((pin) => pin.blocks))
          for (const key of (JSON.parse(record) as Pin).blocks)
            if (!needed.has(key)) await rm(fileOf(key), { force: true })
        }),
      ),
    async status(cid) {
      const record = await readFile(recordOf(cid), 'utf8').catch(() => undefined)
      return record === undefined ? 'absent' : 'pinned'
    },
    async probe() {
      await wrapped('write', async () => {
        await folder(blocks)
        const file = join(root, `probe.${process.pid}`)
        await writeDurably(file, createHash('sha256').update(file).digest())
        await unlink(file)
        const { bavail, bsize } = await statfs(root)
        if (bavail * bsize < leastFreeBytes) throw Object.assign(new Error('no room'), { code: 'ENOSPC' })
      })
    },
    read: (cid) => read(blockKey(cid)),
    holds: async (cid) => (await read(blockKey(cid))) !== undefined,
    close: async () => {
      await turn
    },
  }
}

/** A rename is on the platter when its folder is. */
async function syncFolder(path: string): Promise<void> {
  const handle = await open(path, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}

function codeOf(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null)?.code
  return typeof code === 'string' ? code : undefined
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
