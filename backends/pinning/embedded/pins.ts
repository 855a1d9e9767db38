// The records of the embedded store, one small file per pin. By CID and not by hash: a raw file whose bytes are the root
// of another one is a pin of its own. A record that is being freed lies beside the others until all that it lists is gone, so
// that what a kill in between leaves is freed later.
import { readFile, rm } from 'node:fs/promises'
import { join, sep } from 'node:path'
import type { CID } from 'multiformats/cid'
import { isThere, namesIn, orIfGone } from '../../../src/core/disk/files.ts'
import { Failure, isFailure } from '../../../src/core/failure.ts'
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
  /** On the platter when it resolves: from here on it does not count, and is one of `freed`. */
  free(cid: CID): Promise<void>
  all(): AsyncIterable<Pin>
  /** Whose blocks may still be here. */
  freed(): Promise<readonly Freed[]>
}

/** `end` forgets it: call it when its blocks are gone. */
export type Freed = { readonly blocks: readonly string[]; readonly end: () => Promise<void> }

export type PinFolders = { readonly roots: string; readonly freed: string }

export function createPins({ roots: root, freed }: PinFolders, disk: Disk): Pins {
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
    async free(cid) {
      // A disk that is full may have no room for another name: what a kill leaves then is all that is lost.
      await disk.move(fileOf(cid), join(freed, `${nameOf(cid)}.json`)).catch(() => rm(fileOf(cid), { force: true }))
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
    async freed() {
      const found: Freed[] = []
      for await (const name of namesIn(freed)) {
        const file = join(freed, name)
        const blocks = await freedBy(file)
        if (blocks) found.push({ blocks, end: () => rm(file, { force: true }) })
      }
      return found
    },
  }
}

/** A damaged record frees nothing. Undefined for one that cannot be read now, which waits for a later call. */
async function freedBy(file: string): Promise<readonly string[] | undefined> {
  try {
    return (await readPin(file))?.blocks ?? []
  } catch (error) {
    return isFailure(error, 'broken') ? [] : undefined
  }
}

async function readPin(file: string): Promise<Pin | undefined> {
  const text = await orIfGone(readFile(file, 'utf8'), undefined)
  if (text === undefined) return undefined
  try {
    const pin = JSON.parse(text) as Pin
    if (Array.isArray(pin.blocks)) return pin
  } catch {}
  throw unreadable(file)
}

const unreadable = (file: string): Failure =>
  new Failure(
    'broken',
    `the record ${file} is damaged: nothing is freed while it is not known what it needs. Upload that file again`,
    {
      source: 'provider',
      facts: { class: 'transient' },
    },
  )
