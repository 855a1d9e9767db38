// Uploads on their way when the gateway goes: what it still writes is written before it says that it is closed.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { silentLog } from '../../src/core/log.ts'
import { createClaims } from '../../src/upload/claims.ts'
import { createConfirmation } from '../../src/upload/confirm/confirm.ts'
import type { Journal, JournalEntry } from '../../src/upload/spool/journal.ts'
import type { Spools } from '../../src/upload/spool/spool.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addFile } from '../support/fixtures.ts'
import { scriptedProvider } from '../support/scripted-provider.ts'

const { cid } = await addFile(new Map(), new Uint8Array([1]), 'v1')
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
  const journal: Pick<Journal, 'load' | 'write' | 'remove' | 'finish'> = {
    async load() {
      await loading.promise
      return { entries: lying, ids: new Set(lying.map(({ id }) => id)) }
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
    clock: createFakeClock(),
    log: silentLog,
    pinMs: 1000,
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
