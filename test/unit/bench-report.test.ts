// What `npm run bench` writes into docs/measured.md, of figures that are made up.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { bars } from '../../bench/bars.ts'
import { type Run, section } from '../../bench/report.ts'

const figure = { rounds: [90, 110], perSecond: 80, residentBytes: 2 ** 20, peakBytes: 2 ** 21 }
const row = { id: 'miss', work: 'small files', unit: 'requests', aims: { proxy: 0.75, nginx: 0.2, kubo: 1 } } as const
const run: Run = {
  before: { text: '2 x a processor', load: 0.5 },
  after: { text: '2 x a processor', load: 1.5 },
  scale: { seconds: 4, rounds: 7, isQuick: false },
  measured: [
    {
      row: { ...row, setUp: () => Promise.reject(new Error('not measured here')) },
      figures: [
        { ...figure, name: 'cidgate', perCpuSecond: 100 },
        { ...figure, name: 'proxy', perCpuSecond: 200, ratio: 0.5 },
        { ...figure, name: 'nginx', perCpuSecond: 300, ratio: 0.33 },
      ],
      missing: ['kubo'],
    },
  ],
  tried: [{ trial: { id: 'race', what: 'stalls', script: '', quick: {} }, lines: ['holds  one', '(ended with 1)'] }],
}

test('report: machine, aims met and missed, missing peers, trials', () => {
  const text = section(run)
  assert.match(text, /^2 x a processor; load 0\.5 when it began and 1\.5 when it ended; 7 rounds of 4 s/m)
  assert.match(text, /\| proxy \| 200 \| 0\.50 \| 0\.75, not met \|/)
  assert.match(text, /\| nginx \|.+\| 0\.33 \| 0\.2, met \|/)
  assert.match(text, /\| kubo \| not installed \|/)
  assert.match(text, /`race`, stalls:\n\n```text\nholds {2}one\n\(ended with 1\)\n```/)
})

test('plot: a bar per peer, red below the aim, aim marked', () => {
  const plot = bars([
    { name: 'miss of proxy', ratio: 0.5, aim: 0.75 },
    { name: 'hot of bare', ratio: 1.1, aim: 1 },
    { name: 'hot of nginx', ratio: 0.6, aim: undefined },
  ])
  assert.equal(plot.match(/fill="#c4511b"/g)?.length, 1)
  assert.equal(plot.match(/fill="#1b6ca8"/g)?.length, 2)
  assert.equal(plot.match(/stroke-width="2"/g)?.length, 2)
})
