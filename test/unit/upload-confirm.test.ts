// Uploads on their way when the gateway goes: what it still writes is written before it says that it is closed, and what a
// client was told is in the journal before it is told.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import type { LocalStore, Provider } from '../../backends/pinning/contract.ts'
import { silentLog } from '../../src/core/log.ts'
import { createClaims } from '../../src/upload/claims.ts'
import { createConfirmation } from '../../src/upload/confirm/confirm.ts'
import { createRetries } from '../../src/upload/confirm/retries.ts'
import type { Journal, JournalEntry } from '../../src/upload/spool/journal.ts'
import type { Spools } from '../../src/upload/spool/spool.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addFile } from '../support/fixtures.ts'
import { scriptedProvider } from '../support/scripted-provider.ts'

const { cid } = await addFile(new Map(), new Uint8Array([1]), 'v1')
const nothingToMend = { begin: async () => ({ entries: [], later: [] }) }
const turns = async () => {
  for (let turn = 0; turn < 20; turn++) await setImmediate()
}

function stage(lying: readonly JournalEntry[]) {
  const writes: string[] = []
  const slow: (() => void)[] = []
  const wait = (what: string) => {
    writes.push(what)
    return new Promise<void>((resolve) => slow.push(resolve))
  }
  const loading = Promise.withResolvers<void>()
  const journal: Pick<Journal, 'load' | 'write' | 'isCopied' | 'remove' | 'finish'> = {
    isCopied: () => true,
    async load() {
      await loading.promise
      return { entries: lying, ids: new Set(lying.map(({ id }) => id)), damaged: [] }
    },
    write: ({ id }) => wait(`write ${id}`),
    remove: ({ id }) => wait(`remove ${id}`),
    finish: ({ id }) => wait(`finish ${id}`),
  }
  const upload = { cid, profile: 'unixfs-v1-2025', bytes: 1, carBytes: 100 }
  const spools = {
    open: () => upload,
    drop: async () => {},
    persist: async () => {},
    isHere: async () => true,
    offer: async () => {},
    sweep: async () => {},
  }
  const confirmation = createConfirmation({
    providers: [scriptedProvider('kubo', 'dead')],
    stores: [],
    confirm: 1,
    queue: true,
    journal: journal as Journal,
    spools: spools as unknown as Spools,
    claims: createClaims(),
    mending: nothingToMend,
    clock: createFakeClock(),
    log: silentLog,
    pinMs: 1000,
    admit: () => {},
    retrieval: { sharedTiers: [], bring: async () => {} },
    mostOwed: 10,
    mostOwedBytes: 1000,
    onConfirmed: async () => [],
  })
  const close = () => {
    const state = { isOver: false }
    void confirmation.close().then(() => {
      state.isOver = true
    })
    return state
  }
  return { writes, slow, loading, confirmation, upload: upload as never, close }
}

const accepted: JournalEntry = {
  id: 'first',
  cid: cid.toString(),
  profile: 'unixfs-v1-2025',
  bytes: 1,
  carBytes: 100,
  at: '2026-01-01T00:00:00.000Z',
  accepted: true,
  providers: {},
}

test('a gateway that closes while the same file comes anew waits until its entry is written', async () => {
  const { writes, slow, loading, confirmation, upload, close } = stage([accepted])
  loading.resolve()
  await confirmation.resume()
  const anew = confirmation.confirm([{ upload, id: 'second' }])
  anew.catch(() => {})
  await turns()
  assert.deepEqual(writes, ['write second'])
  const closing = close()
  await turns()
  assert.equal(closing.isOver, false)
  for (let next = slow.shift(); next; next = slow.shift()) {
    next()
    await turns()
  }
  assert.ok(closing.isOver)
  const before = writes.length
  await turns()
  assert.equal(writes.length, before)
  await assert.rejects(anew)
})

test('a gateway that closes while a client waits for what an earlier process left tells the client, and closes', {
  timeout: 20_000,
}, async () => {
  const { slow, loading, confirmation, upload, close } = stage([{ ...accepted, accepted: false }])
  loading.resolve()
  await confirmation.resume()
  const joined = confirmation.confirm([{ upload, id: 'second' }])
  joined.catch(() => {})
  await turns()
  const closing = close()
  await turns()
  for (let next = slow.shift(); next; next = slow.shift()) {
    next()
    await turns()
  }
  await assert.rejects(joined, /this gateway stops/)
  assert.ok(closing.isOver)
})

test('closing during a resume waits until each upload is resumed or left', async () => {
  const { loading, confirmation, close } = stage([accepted])
  const resumed = confirmation.resume()
  const closing = close()
  await turns()
  assert.equal(closing.isOver, false)
  loading.resolve()
  await resumed
  await turns()
  assert.ok(closing.isOver)
})

/** A gateway over `entries`, the journal's open files. No record that it makes reaches the disk. */
function killable(entries: Map<string, string>, providers: readonly Provider[], store: LocalStore[] = []) {
  const records: JournalEntry[] = []
  const journal: Pick<Journal, 'load' | 'write' | 'isCopied' | 'remove' | 'finish'> = {
    isCopied: () => true,
    async load() {
      const lying = [...entries.values()].map((text) => JSON.parse(text) as JournalEntry)
      return { entries: lying, ids: new Set(entries.keys()), damaged: [] }
    },
    write: async (entry) => void entries.set(entry.id, JSON.stringify(entry)),
    remove: async ({ id }) => void entries.delete(id),
    async finish(entry) {
      records.push(entry)
    },
  }
  const upload = {
    ...{ cid, profile: 'unixfs-v1-2025', bytes: 1, carBytes: 100 },
    async *file() {
      yield new Uint8Array([1])
    },
  }
  // The block was in memory, and is gone with the process.
  const spools = {
    open: () => upload,
    drop: async () => {},
    persist: async () => {},
    isHere: async () => false,
    offer: async () => {},
    sweep: async () => {},
  }
  const confirmation = createConfirmation({
    ...{
      providers,
      stores: store,
      confirm: 'all',
      queue: false,
      pinMs: 1000,
      admit: () => {},
      mostOwed: 10,
      mostOwedBytes: 1000,
    },
    journal: journal as Journal,
    spools: spools as unknown as Spools,
    claims: createClaims(),
    mending: nothingToMend,
    clock: createFakeClock(),
    log: silentLog,
    retrieval: { sharedTiers: [], bring: async () => {} },
    onConfirmed: async () => [],
  })
  return { confirmation, records, upload: upload as never }
}

test('killed between its 200 and its record, an upload that every provider holds becomes a record', async () => {
  const entries = new Map<string, string>()
  const remote = scriptedProvider('remote')
  const { confirmation, upload } = killable(entries, [remote])
  await confirmation.confirm([{ upload, id: 'one' }])
  const next = killable(entries, [remote])
  await next.confirmation.resume()
  await turns()
  assert.deepEqual(
    next.records.map(({ id, accepted, providers }) => ({ id, accepted, state: providers['remote']?.state })),
    [{ id: 'one', accepted: true, state: 'held' }],
  )
})

test('killed between its 200 and its record, an upload keeps its pins although a provider fails at the restart', async () => {
  const entries = new Map<string, string>()
  const locals = [
    scriptedProvider('one', 'holds', { local: true }),
    scriptedProvider('two', 'holds', { local: true }),
  ] as const
  const { confirmation, upload } = killable(entries, locals)
  await confirmation.confirm([{ upload, id: 'one' }])
  locals[1].behaviour = 'dead'
  const store: LocalStore = { get: async () => new Uint8Array([1]), has: async () => true }
  const next = killable(entries, locals, [store])
  await next.confirmation.resume()
  await turns()
  assert.deepEqual([...locals[0].unpins, ...locals[1].unpins], [])
  assert.deepEqual([locals[0].held.size, locals[1].held.size], [1, 1])
  assert.deepEqual(
    next.records.map(({ id }) => id),
    ['one'],
  )
})

test('after the clock was set back by a month, a provider is asked again within a day', () => {
  const clock = createFakeClock()
  const day = 24 * 3_600_000
  const waits: number[] = []
  const retries = createRetries({
    ...{ providers: [scriptedProvider('kubo')], clock, log: silentLog, pinMs: 1000, random: () => 0.5 },
    ...{ admit: () => {}, closing: new AbortController().signal, track: (work) => work, onSettled: () => {} },
  })
  const standing = { state: 'wanted', tries: 1, notBefore: clock.now() + 30 * day }
  const later = (_name: string, ms: number) => waits.push(ms)
  retries.goOn({ state: 'accepted', asking: new Set(), standing: () => standing, later } as never)
  assert.deepEqual(waits, [day])
})
