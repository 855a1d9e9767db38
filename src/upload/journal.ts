// What was accepted and where each provider stands with it, one small file per upload. A file under `open` is work to be
// done, also by the process after this one; when every provider holds it, it moves to `done` and is only a record.
import { readdir, readFile, rename, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { CID } from 'multiformats/cid'
import type { Profile } from '../../backends/pinning/contract.ts'
import type { Log } from '../observe/log.ts'
import { makeFolder, syncFolder, writeDurably } from './durable.ts'
import { codeOf } from './failures.ts'

export type FailureClass = 'auth' | 'quota' | 'transient' | 'content'

export type Standing = {
  /** `given-up`: an operator's word. */
  readonly state: 'wanted' | 'held' | 'given-up'
  readonly tries: number
  readonly class?: FailureClass
  readonly why?: string
  /** Milliseconds since the epoch; nothing is tried before. */
  readonly notBefore?: number
}

export type Entry = {
  /** Of its spool, too. */
  readonly id: string
  readonly cid: string
  readonly profile: Profile
  readonly bytes: number
  readonly carBytes: number
  readonly at: string
  /** Somebody was told that it is held. What was not is undone when it cannot be finished. */
  readonly accepted: boolean
  readonly providers: Readonly<Record<string, Standing>>
}

export interface Journal {
  /** What is open, the oldest first. */
  load(): Promise<Entry[]>
  /** On the platter when it resolves. */
  write(entry: Entry): Promise<void>
  finish(entry: Entry): Promise<void>
  remove(entry: Entry): Promise<void>
  /** The record of an upload that every provider held. */
  record(cid: CID): Promise<Entry | undefined>
  records(): AsyncIterable<Entry>
}

export function createJournal(root: string, log: Log): Journal {
  const open = join(root, 'open')
  const done = join(root, 'done')
  const fileOf = (id: string): string => join(open, `${id}.json`)
  const recordOf = (name: string): string => join(done, name.slice(-2), `${name}.json`)

  async function parse(file: string): Promise<Entry | undefined> {
    const text = await readFile(file, 'utf8').catch((error: unknown) => {
      if (codeOf(error) === 'ENOENT') return undefined
      throw error
    })
    if (text === undefined) return undefined
    try {
      return JSON.parse(text) as Entry
    } catch {
      log('error', 'journal.unreadable', { file })
      return undefined
    }
  }

  return {
    async load() {
      await makeFolder(open)
      const entries: Entry[] = []
      for (const file of await readdir(open)) {
        if (file.endsWith('.tmp')) await rm(join(open, file), { force: true })
        const entry = file.endsWith('.json') ? await parse(join(open, file)) : undefined
        if (entry) entries.push(entry)
      }
      return entries.sort((one, other) => one.at.localeCompare(other.at))
    },
    async write(entry) {
      await makeFolder(open)
      await writeDurably(fileOf(entry.id), Buffer.from(JSON.stringify(entry)))
      await syncFolder(open)
    },
    async finish(entry) {
      const record = recordOf(entry.cid)
      await makeFolder(dirname(record))
      await writeDurably(fileOf(entry.id), Buffer.from(JSON.stringify(entry)))
      await rename(fileOf(entry.id), record)
    },
    async remove(entry) {
      await rm(fileOf(entry.id), { force: true })
      await syncFolder(open)
    },
    record: (cid) => parse(recordOf(nameOf(cid))),
    async *records() {
      for (const shard of await namesIn(done))
        for (const file of await namesIn(join(done, shard))) {
          const entry = file.endsWith('.json') ? await parse(join(done, shard, file)) : undefined
          if (entry) yield entry
        }
    },
  }
}

async function namesIn(folder: string): Promise<string[]> {
  return readdir(folder).catch((error: unknown) => {
    if (codeOf(error) === 'ENOENT') return []
    throw error
  })
}

/** One name for a file, whatever version of its CID it is called by. */
export const nameOf = (cid: CID): string => cid.toV1().toString()
