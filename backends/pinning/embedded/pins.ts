// The records of the embedded store, one small file per pin. By CID and not by hash: a raw file whose bytes are the root
// of another one is a pin of its own.
import { readdir, readFile, unlink } from 'node:fs/promises'
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import type { Disk } from './disk.ts'

export type Pin = {
  readonly cid: string
  readonly bytes: number
  readonly at: string
  /** Keys of its blocks, each once. */
  readonly blocks: readonly string[]
}

export interface Pins {
  read(cid: CID): Promise<Pin | undefined>
  /** On the platter when it resolves: from here on it counts. */
  write(cid: CID, pin: Pin): Promise<void>
  remove(cid: CID): Promise<void>
  all(): AsyncIterable<Pin>
}

export function createPins(root: string, disk: Disk): Pins {
  const shardOf = (name: string): string => join(root, name.slice(-2))
  const nameOf = (cid: CID): string => cid.toV1().toString()
  const fileOf = (cid: CID): string => join(shardOf(nameOf(cid)), `${nameOf(cid)}.json`)

  return {
    read: (cid) => readPin(fileOf(cid)),
    async write(cid, pin) {
      await disk.write(fileOf(cid), Buffer.from(JSON.stringify(pin)))
      await disk.sync(shardOf(nameOf(cid)))
    },
    async remove(cid) {
      await unlink(fileOf(cid))
      await disk.sync(shardOf(nameOf(cid)))
    },
    async *all() {
      for (const shard of await names(root)) {
        for (const file of await names(join(root, shard))) {
          const pin = file.endsWith('.json') ? await readPin(join(root, shard, file)) : undefined
          if (pin) yield pin
        }
      }
    },
  }
}

async function readPin(file: string): Promise<Pin | undefined> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as Pin
  } catch (error) {
    if (isGone(error)) return undefined
    throw error
  }
}

async function names(folder: string): Promise<string[]> {
  try {
    return await readdir(folder)
  } catch (error) {
    if (isGone(error)) return []
    throw error
  }
}

const isGone = (error: unknown): boolean => error instanceof Error && 'code' in error && error.code === 'ENOENT'
