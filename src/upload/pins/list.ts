// One page of the pins, in the order of their records' files, with open entries in between. However many there are, one folder
// of names and one page are in memory.

import { CID } from 'multiformats/cid'
import type { Journal, JournalEntry } from '../spool/journal.ts'
import { cidOf, inOrder } from '../spool/journal.ts'
import type { Page, Pin, Standing } from './told.ts'

export type Asked = {
  /** At most so many. */
  readonly limit: number
  /** `next` of the page before. */
  readonly after?: string | undefined
  /** Pins that are in this state at a provider; with `provider`, at that one. */
  readonly state?: Standing | undefined
  readonly provider?: string | undefined
  /** When it was uploaded, in milliseconds since the epoch. */
  readonly since?: number | undefined
  readonly until?: number | undefined
  readonly minBytes?: number | undefined
  readonly maxBytes?: number | undefined
}

/** Records that are read for one page: those that are not asked for take time, too. */
const mostRead = 20_000
const readsAtOnce = 16

/** A configured provider that an entry does not name lacks it; while it is open, it is to get it. */
export function pinOf(entry: JournalEntry, names: readonly string[], isOpen: boolean): Pin {
  const unnamed = { state: isOpen ? ('wanted' as const) : ('absent' as const), tries: 0 }
  const providers = { ...Object.fromEntries(names.map((name) => [name, unnamed])), ...entry.providers }
  return { cid: cidOf(entry).toString(), bytes: entry.bytes, at: entry.at, isOpen, providers }
}

type From = {
  readonly journal: Pick<Journal, 'record' | 'names'>
  readonly open: () => readonly JournalEntry[]
  readonly names: readonly string[]
  readonly signal: AbortSignal
}

export async function listPins(asked: Asked, { journal, open, names, signal }: From): Promise<Page> {
  const pins: Pin[] = []
  let read = 0
  let batch: string[] = []
  const byName = new Map(open().flatMap((entry) => (entry.accepted ? [[entry.cid, entry] as const] : [])))
  const take = async (name: string): Promise<Pin | undefined> => {
    const running = byName.get(name)
    const entry = running ?? (await journal.record(CID.parse(name)))
    return entry && pinOf(entry, names, running !== undefined)
  }
  /** The name of the last one where the page is full. */
  const flush = async (): Promise<string | undefined> => {
    const some = batch
    batch = []
    for (const [index, pin] of (await Promise.all(some.map(take))).entries()) {
      if (pin && isAskedFor(pin, asked)) pins.push(pin)
      if (pins.length >= asked.limit) return some[index]
    }
    return (read += some.length) >= mostRead ? some.at(-1) : undefined
  }
  for await (const name of merged(journal.names(asked.after), [...byName.keys()], asked.after)) {
    signal.throwIfAborted()
    if (batch.push(name) < readsAtOnce) continue
    const last = await flush()
    if (last !== undefined) return { pins, next: last }
  }
  const last = await flush()
  return { pins, next: pins.length >= asked.limit ? last : undefined }
}

/** Both in order, each name once. A name that is no CID was not written by this gateway. */
async function* merged(records: AsyncIterable<string>, open: readonly string[], after = ''): AsyncGenerator<string> {
  const waiting = open.filter((name) => inOrder(after, name) < 0).sort(inOrder)
  let at = 0
  for await (const name of records) {
    for (let next = waiting[at]; next !== undefined && inOrder(next, name) < 0; next = waiting[++at]) yield next
    if (waiting[at] === name) at++
    if (isCid(name)) yield name
  }
  yield* waiting.slice(at)
}

function isCid(name: string): boolean {
  try {
    CID.parse(name)
    return true
  } catch {
    return false
  }
}

function isAskedFor({ providers, bytes, at }: Pin, asked: Asked): boolean {
  const { provider, state, since = 0, until = Number.POSITIVE_INFINITY } = asked
  const { minBytes = 0, maxBytes = Number.POSITIVE_INFINITY } = asked
  const time = Date.parse(at)
  if (bytes < minBytes || bytes > maxBytes || time < since || time > until) return false
  if (provider !== undefined) {
    const standing = providers[provider]?.state
    return state === undefined ? standing === 'held' : standing === state
  }
  return state === undefined || Object.values(providers).some((one) => one.state === state)
}
