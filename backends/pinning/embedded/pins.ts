// The records of the embedded store, one small file per pin. By CID and not by hash: a raw file whose bytes are the root
// of another one is a pin of its own.
import { readFile, unlink } from 'node:fs/promises'
import { join, sep } from 'node:path'
import type { CID } from 'multiformats/cid'
import { isThere, namesIn, orIfGone } from '../../../src/core/files.ts'
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
  const shardOf = (name: string): string => root + sep + name.slice(-2)
  const nameOf = (cid: CID): string => cid.toV1().toString()
  const fileOf = (cid: CID): string => {
    const name = nameOf(cid)
    return `${shardOf(name)}${sep}${name}.json`
  }

  return {
    read: async (cid) => ((await isThere(fileOf(cid))) ? readPin(fileOf(cid)) : undefined),
    async write(cid, pin) {
      await disk.write(fileOf(cid), Buffer.from(JSON.stringify(pin)))
      await disk.sync(shardOf(nameOf(cid)))
    },
    async remove(cid) {
      await unlink(fileOf(cid))
      await disk.sync(shardOf(nameOf(cid)))
    },
    async *all() {
      for await (const shard of namesIn(root)) {
        for await (const file of namesIn(join(root, shard))) {
          const pin = file.endsWith('.json') ? await readPin(join(root, shard, file)) : undefined
          if (pin) yield pin
        }
      }
    },
  }
}

async function readPin(file: string): Promise<Pin | undefined> {
  const text = await orIfGone(readFile(file, 'utf8'), undefined)
  return text === undefined ? undefined : (JSON.parse(text) as Pin)
}
