// Stores the last record of each key in a folder, so that names resolve after a restart with every upstream down.
// Readers verify it again.
import { readdir, readFile, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import { maxRecordBytes } from '../../backends/upstreams/contract.ts'
import { isLeftOver, makeFolders, orIfGone, writeDurably } from '../core/disk/files.ts'
import type { Log } from '../core/log.ts'
import { keyText } from './ipns-record.ts'

export interface RecordStore {
  /** Undefined: there is none. Rejects where the disk cannot say. */
  read(key: CID): Promise<Uint8Array | undefined>
  /** Returns at once; the newest write of a key is what stays. */
  write(key: CID, bytes: Uint8Array): void
  remove(key: CID): void
  /** Resolves when everything that was written is in its place. */
  close(): Promise<void>
}

const suffix = '.ipns-record'
const mostWaiting = 1000

/** At most `most` records; the one that was written longest ago goes first. */
export function createRecordStore(options: {
  readonly folder: string
  readonly most: number
  readonly log: Log
}): RecordStore {
  const { folder, most, log } = options
  const waiting = new Map<string, Uint8Array | undefined>() // undefined: to be removed
  let underWay: { readonly name: string; readonly bytes: Uint8Array | undefined } | undefined
  let writer: Promise<void> | undefined
  let listing: Promise<Set<string>> | undefined
  let complained = false

  const file = (name: string): string => join(folder, `${name}${suffix}`)

  function complain(what: string, error: unknown): void {
    if (complained) return
    complained = true
    log('warn', 'names.store', { what, error: error instanceof Error ? error.message : String(error) })
  }

  /** The names in the folder, the oldest first. A failed look is forgotten, so that the next one looks again. */
  function names(): Promise<Set<string>> {
    listing ??= list().catch((error) => {
      listing = undefined
      throw error
    })
    return listing
  }

  async function list(): Promise<Set<string>> {
    await makeFolders(folder)
    const found: { name: string; at: number }[] = []
    for (const entry of await readdir(folder)) {
      const path = join(folder, entry)
      if (isLeftOver(entry)) await rm(path, { force: true })
      else if (entry.endsWith(suffix)) {
        const { mtimeMs } = await stat(path)
        found.push({ name: entry.slice(0, -suffix.length), at: mtimeMs })
      }
    }
    return new Set(found.sort((one, other) => one.at - other.at).map(({ name }) => name))
  }

  async function put(name: string, bytes: Uint8Array | undefined): Promise<void> {
    const all = await names()
    // What was there counts until the new one is: a write may fail.
    if (bytes) await writeDurably(file(name), bytes)
    else await rm(file(name), { force: true })
    all.delete(name)
    if (!bytes) return
    all.add(name)
    for (const oldest of all) {
      if (all.size <= most) return
      all.delete(oldest)
      await rm(file(oldest), { force: true })
    }
  }

  async function drain(): Promise<void> {
    for (const [name, bytes] of waiting) {
      waiting.delete(name)
      underWay = { name, bytes }
      await put(name, bytes).then(
        () => {
          complained = false
        },
        (error) => complain(`the record of ${name} could not be kept`, error),
      )
    }
    underWay = undefined
    writer = undefined
  }

  function enqueue(key: CID, bytes: Uint8Array | undefined): void {
    const name = keyText(key)
    if (!waiting.has(name) && waiting.size >= mostWaiting) return
    waiting.set(name, bytes)
    writer ??= Promise.resolve().then(drain)
  }

  return {
    async read(key) {
      const name = keyText(key)
      if (waiting.has(name)) return waiting.get(name)
      if (underWay?.name === name) return underWay.bytes
      try {
        if (!(await names()).has(name)) return undefined
        const size = await orIfGone(
          stat(file(name)).then((found) => found.size),
          undefined,
        )
        if (size === undefined || size > maxRecordBytes) return undefined
        return await orIfGone(readFile(file(name)), undefined)
      } catch (error) {
        complain(`the record of ${name} could not be read`, error)
        throw error
      }
    },
    write: (key, bytes) => enqueue(key, bytes),
    remove: (key) => enqueue(key, undefined),
    async close() {
      while (writer !== undefined) await writer
    },
  }
}
