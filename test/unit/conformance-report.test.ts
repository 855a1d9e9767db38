// How the report of the conformance suite is counted.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { type Column, judged, readReport, sorted, table } from '../interop/conformance/report.ts'

const lines = (outcomes: Record<string, string>): string =>
  Object.entries(outcomes)
    .flatMap(([Test, Action]) => [
      JSON.stringify({ Action: 'run', Test }),
      JSON.stringify({ Action: 'output', Test, Output: 'said' }),
      JSON.stringify({ Action, Test }),
    ])
    .concat('no JSON at all', JSON.stringify({ Action: 'pass', Package: 'all of it' }))
    .join('\n')

describe('conformance report', () => {
  test('counts leaf tests only', () => {
    const { passed, failed } = readReport(
      lines({
        TestMetadata: 'pass',
        TestOne: 'fail',
        'TestOne/a': 'pass',
        'TestOne/b': 'fail',
        'TestOne/b/header': 'fail',
        'TestOne/b/body': 'pass',
        TestTwo: 'skip',
        'TestTwo/c': 'skip',
      }),
    )
    assert.deepEqual([...passed], ['TestOne/a', 'TestOne/b/body'])
    assert.deepEqual([...failed], ['TestOne/b/header'])
  })

  test('test that fails before its first case → failure', () => {
    assert.deepEqual([...readReport(lines({ TestOne: 'fail' })).failed], ['TestOne'])
  })

  test('case counts once, in its first group', () => {
    const run = (...names: string[]) => ({ passed: new Set(names), failed: new Set<string>() })
    const cases = sorted(
      new Map([
        ['one', run('a', 'b')],
        ['two', run('c')],
        ['one,two', { ...run('a', 'b', 'c'), failed: new Set(['d']) }],
      ]),
    )
    assert.deepEqual(
      [...cases].map(([group, names]) => [group, [...names]]),
      [
        ['one', ['a', 'b']],
        ['two', ['c']],
        ['one,two', ['d']],
      ],
    )
  })

  const column = (
    head: string,
    passed: string[],
    failed: string[] = [],
    asked: Column['asked'] = () => true,
  ): Column => ({
    head,
    counts: { passed: new Set(passed), failed: new Set(failed) },
    asked,
  })
  const cases = new Map([
    ['one', new Set(['a', 'b'])],
    ['two', new Set(['c'])],
  ])
  const kubo = column('Kubo', ['a', 'b'], ['c'])

  test('lists differences to the first column', () => {
    assert.deepEqual(judged([kubo, column('ours', ['a', 'b'], ['c'])], cases), {
      missed: [],
      shared: ['ours: two: c: failed'],
    })
    assert.deepEqual(judged([kubo, column('ours', ['c'], ['a'])], cases).missed, [
      'ours: one: a: failed',
      'ours: one: b: was not run',
    ])
    const ofTwo = column('ours', ['c'], [], (group) => group === 'two')
    assert.deepEqual(judged([kubo, ofTwo], cases), { missed: [], shared: [] })
  })

  test('unexpected case or empty run → error', () => {
    const more = column('Kubo', ['a', 'b', 'c', 'd'])
    assert.deepEqual(judged([more, more], cases).missed, ['in no group: Kubo: d', 'in no group: Kubo: d'])
    assert.deepEqual(judged([column('Kubo', [])], new Map()).missed, ['nothing was run'])
  })

  test('table has a row per group and a total', () => {
    const ofTwo = column('ours', ['c'], [], (group) => group === 'two')
    assert.deepEqual(table([kubo, ofTwo], cases).split('\n'), [
      '| group | Kubo | ours |',
      '|---|---|---|',
      '| one | 2 | – |',
      '| two | 0, 1 failed | 1 |',
      '| all | 2, 1 failed | 1 |',
    ])
  })
})
