// The fault matrix in its short form: the rows whose outcome does not hang on a clock, with the statuses and bytes that are
// promised. `npm run faults` runs all rows, holds their times as well, and writes the tables of docs/reliability.md.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { missing, skippedRow } from './matrix/needs.ts'
import { providerFaults, providerRow } from './matrix/providers.ts'
import { brokenCells, type Row, short, skippedRows, tableOf } from './matrix/rows.ts'
import { redisFaults, redisRow, storeFaults, storeRow } from './matrix/stores.ts'
import { upstreamFaults, upstreamRow } from './matrix/upstreams.ts'

const brokenIn = ({ cells }: Row): readonly string[] => cells.flatMap(({ broken }) => broken)

describe('an upstream that', () => {
  for (const fault of upstreamFaults.filter(({ isQuick }) => isQuick))
    test(`${fault.name}: alone, before a healthy one, and mended`, async () => {
      assert.deepEqual(brokenIn(await upstreamRow(fault, short)), [])
    })
})

describe('an S3 that', () => {
  for (const fault of storeFaults.filter(({ isQuick }) => isQuick))
    test(`${fault.name}: alone, before a healthy upstream, and mended`, async () => {
      assert.deepEqual(brokenIn(await storeRow(fault, short)), [])
    })
})

describe('a Redis that', () => {
  for (const fault of redisFaults.filter(({ isQuick }) => isQuick))
    test(`${fault.name}: alone, before a healthy upstream, and mended`, async () => {
      assert.deepEqual(brokenIn(await redisRow(fault, short)), [])
    })
})

describe('a provider that', () => {
  for (const fault of providerFaults.filter(({ isQuick }) => isQuick))
    test(`${fault.name}: alone, beside a healthy one, and mended`, async () => {
      assert.deepEqual(brokenIn(await providerRow(fault, short)), [])
    })
})

test('a table shows what was measured, and what broke a promise', () => {
  const cells = [
    { measured: '404, 2 ms', broken: [] },
    { measured: '200 | 1', broken: ['it was late'] },
  ]
  const table = tableOf({ title: 'One', columns: ['alone', 'after'], rows: [{ fault: 'a', promised: 'b', cells }] })
  assert.match(table, /^### One\n\n\| fault \| promised \| alone \| after \|\n\|---\|---\|---\|---\|\n/)
  assert.ok(table.endsWith('| a | b | 404, 2 ms | **broken:** 200 \\| 1 |'))
})

test('a row that this machine cannot make is skipped by its name, with the reason, and is no promise kept', async () => {
  const reason = await missing(['linux', 'prlimit'], async (need) =>
    need === 'prlimit' ? 'it needs prlimit' : undefined,
  )
  assert.equal(reason, 'it needs prlimit')
  assert.equal(await missing(['linux'], async () => undefined), undefined)
  const rows = [skippedRow('no file can be opened', reason, ['alone', 'after'])]
  const section = { title: 'One', columns: ['alone', 'after'], rows }
  assert.deepEqual(brokenCells(section), [])
  assert.deepEqual(skippedRows(section), ['no file can be opened: it needs prlimit'])
  assert.ok(tableOf(section).endsWith('| no file can be opened | **skipped:** it needs prlimit |  |  |'))
})
