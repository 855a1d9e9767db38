// The fault matrix in its short form: rows that are quick and hang on no clock, with the statuses and bytes that are promised.
// Of the process and of one client beside others there are none: they need seconds. `npm run faults` runs all rows, holds their
// times as well, and writes the tables of docs/measured.md.
import assert from 'node:assert/strict'
import { Agent } from 'node:http'
import { after, before, describe, test } from 'node:test'
import { addFile, type BlockMap, noise } from '../support/fixtures.ts'
import { fetchAll } from '../support/gateway.ts'
import { type Served, startServed } from '../support/served.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'
import { diskFaults, diskRow, type Start } from './matrix/disk.ts'
import { missing, skippedRow } from './matrix/needs.ts'
import { providerFaults, providerRow } from './matrix/providers.ts'
import { brokenCells, type Row, short, skippedRows, tableOf } from './matrix/rows.ts'
import { redisFaults, redisRow, storeFaults, storeRow } from './matrix/stores.ts'
import { upstreamFaults, upstreamRow } from './matrix/upstreams.ts'
import { wireFaults } from './matrix/wire/faults.ts'
import type { Semaphore } from './matrix/wire/gate.ts'
import { wireRowAt } from './matrix/wire/row.ts'

const isWhole = process.env['CIDGATE_ALL_ROWS'] === '1'

/** All of them take twenty seconds, a third of them of a processor: `npm test` has every fifth one, and CI all. */
const held = <Fault extends { readonly isQuick?: true }>(faults: readonly Fault[]): readonly Fault[] =>
  faults.filter(({ isQuick }) => isQuick).filter((_fault, at) => isWhole || at % 5 === 0)

const brokenIn = ({ cells }: Row): readonly string[] => cells.flatMap(({ broken }) => broken)

describe('upstream that', () => {
  for (const fault of held(upstreamFaults))
    test(`${fault.name}: alone, before a healthy one, recovered`, async () => {
      assert.deepEqual(brokenIn(await upstreamRow(fault, short)), [])
    })
})

describe('S3 that', () => {
  for (const fault of held(storeFaults))
    test(`${fault.name}: alone, before a healthy upstream, recovered`, async () => {
      assert.deepEqual(brokenIn(await storeRow(fault, short)), [])
    })
})

describe('Redis that', () => {
  for (const fault of held(redisFaults))
    test(`${fault.name}: alone, before a healthy upstream, recovered`, async () => {
      assert.deepEqual(brokenIn(await redisRow(fault, short)), [])
    })
})

describe('provider that', () => {
  for (const fault of held(providerFaults))
    test(`${fault.name}: alone, with a healthy one, recovered`, async () => {
      assert.deepEqual(brokenIn(await providerRow(fault, short)), [])
    })
})

describe('disk on which', () => {
  const inThisProcess: Start = async (_folder, config) => {
    const { url, close } = await startServed(config)
    return { url, pid: process.pid, handles: () => 0, ended: undefined, stop: close }
  }
  for (const fault of held(diskFaults))
    test(`${fault.name}: upload, earlier uploads, reads, recovered`, async () => {
      assert.deepEqual(brokenIn(await diskRow(fault, short, inThisProcess)), [])
    })
})

describe('request with', () => {
  let upstream: ProgrammableUpstream
  let served: Served
  let gate: Semaphore
  before(async () => {
    const blocks: BlockMap = new Map()
    const { cid } = await addFile(blocks, noise(1000, 1))
    upstream = await startUpstream({ blocks })
    served = await startServed({ retrieval: { upstreams: [{ name: 'well', url: upstream.url }] } })
    const path = `/ipfs/${cid}`
    const errors = () => served.log.flatMap((line) => (line.level === 'error' ? JSON.stringify(line) : [])).join('\n')
    gate = { url: served.url, admin: `http://${served.serving.admin}`, paths: [path, path], errors }
    for (let count = 0; count < 2; count++) await fetchAll(gate.url + path, {}, new Agent())
  })
  after(async () => {
    await served.close()
    await upstream.close()
  })
  for (const fault of held(wireFaults))
    test(`${fault.name}: its response, cached ones meanwhile, no connection left`, async () => {
      assert.deepEqual(brokenIn(await wireRowAt(gate, fault, short)), [])
    })
})

test('matrix table shows measurements and broken promises', () => {
  const cells = [
    { measured: '404, 2 ms', broken: [] },
    { measured: '200 | 1', broken: ['it was late'] },
  ]
  const table = tableOf({ title: 'One', columns: ['alone', 'after'], rows: [{ fault: 'a', promised: 'b', cells }] })
  assert.match(table, /^### One\n\n\| fault \| alone \| after \|\n\|---\|---\|---\|\n/)
  assert.ok(table.endsWith('| a | 404, 2 ms | **broken:** 200 \\| 1 |'))
})

test('unavailable row → skipped by name with reason, not counted', async () => {
  const reason = await missing(['linux', 'prlimit'], async (need) =>
    need === 'prlimit' ? 'it needs prlimit' : undefined,
  )
  assert.equal(reason, 'it needs prlimit')
  assert.equal(await missing(['linux'], async () => undefined), undefined)
  const rows = [skippedRow('no file can be opened', reason, ['alone', 'after'])]
  const section = { title: 'One', columns: ['alone', 'after'], rows }
  assert.deepEqual(brokenCells(section), [])
  assert.deepEqual(skippedRows(section), ['no file can be opened: it needs prlimit'])
  assert.ok(tableOf(section).endsWith('| no file can be opened | **skipped:** it needs prlimit |  |'))
})
