// Frees what a pin of the embedded store had. What a kill in the middle of that leaves is freed by a later call.
import { rm } from 'node:fs/promises'
import type { CID } from 'multiformats/cid'
import { blockKey, proves } from '../../../src/core/block.ts'
import { codec } from '../../../src/core/cid.ts'
import type { ProviderContext } from '../contract.ts'
import type { BlockFiles } from './block-files.ts'
import type { Pins } from './pins.ts'

/** No upload may be pinned meanwhile. */
export interface Freeing {
  free(cid: CID, signal: AbortSignal): Promise<void>
  /** Removes the blocks that no pin lists, and what an earlier call left of that. */
  drop(keys: Set<string>): Promise<void>
}

export type FreeingOptions = {
  readonly pins: Pins
  readonly files: Pick<BlockFiles, 'fileOf' | 'read' | 'has'>
  readonly blocksBelow: ProviderContext['blocksBelow']
}

export function createFreeing({ pins, files: { fileOf, read, has }, blocksBelow }: FreeingOptions): Freeing {
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

  async function drop(keys: Set<string>): Promise<void> {
    const freed = await pins.freed()
    for (const { blocks } of freed) for (const key of blocks) keys.add(key)
    if (keys.size === 0 && freed.length === 0) return
    for await (const { blocks: needed } of pins.all()) for (const key of needed) keys.delete(key)
    // Parents last: what a kill leaves is found below them again.
    for (const key of [...keys].reverse()) await rm(fileOf(key), { recursive: true, force: true })
    for (const { end } of freed) await end()
  }

  return { free, drop }
}
