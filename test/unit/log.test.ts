// What becomes of log lines that cannot be written: they are counted, the process goes on, and the log says so itself later.
import assert from 'node:assert/strict'
import { Writable } from 'node:stream'
import { describe, it } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { createLog, createLogSink, formatFor, survive } from '../../src/core/log.ts'

type Reader = { readonly stream: Writable; readonly lines: string[]; state: 'reads' | 'gone' | 'stands still' }

/** As Node makes standard error: what fails does not close it. */
function createReader(): Reader {
  const lines: string[] = []
  const reader: Reader = {
    lines,
    state: 'reads',
    stream: new Writable({
      decodeStrings: false,
      highWaterMark: 16,
      write(chunk: string, _encoding, done) {
        if (reader.state === 'stands still') return
        if (reader.state === 'gone') return done(Object.assign(new Error('write EPIPE'), { code: 'EPIPE' }))
        lines.push(...chunk.trimEnd().split('\n'))
        done()
      },
      destroy(error, done) {
        done(error)
        Reflect.get(this, '_undestroy').call(this)
      },
    }),
  }
  return reader
}

const eventsOf = ({ lines }: Reader) => lines.map((line) => (JSON.parse(line) as { event: string }).event)

describe('log', () => {
  it('level filter, one JSON line each, with fields', () => {
    const reader = createReader()
    const log = createLog('warn', createLogSink(reader.stream))
    log('info', 'small')
    log('error', 'large', { of: 'us' })
    assert.deepEqual(
      reader.lines.map((line) => ({ ...JSON.parse(line), time: '' })),
      [{ time: '', level: 'error', event: 'large', of: 'us' }],
    )
    assert.equal(log.lost?.(), 0)
  })

  it('reader gone → only lines lost, number reported later', async () => {
    const reader = createReader()
    const log = createLog('info', createLogSink(reader.stream))
    reader.state = 'gone'
    for (const event of ['a', 'b', 'c']) {
      log('info', event)
      await setImmediate()
    }
    assert.equal(log.lost?.(), 3)
    reader.state = 'reads'
    log('info', 'd')
    log('info', 'e')
    assert.deepEqual(eventsOf(reader), ['log.lost', 'd', 'e'])
    assert.equal((JSON.parse(reader.lines[0] ?? '') as { lines: number }).lines, 3)
    assert.equal(log.lost?.(), 3)
  })

  it('stalled reader → at most 1 MiB buffered', () => {
    const reader = createReader()
    const log = createLog('info', createLogSink(reader.stream))
    reader.state = 'stands still'
    for (let count = 0; count < 5000; count++) log('info', 'x'.repeat(1000))
    assert.ok(reader.stream.writableLength < 1.1 * 1024 * 1024)
    const { lost = () => 0 } = log
    assert.ok(lost() > 3500 && lost() < 5000, `${lost()}`)
  })

  it('many logs on a stream → one listener', () => {
    const { stream } = createReader()
    for (let count = 0; count < 30; count++) survive(stream)
    assert.equal(stream.listenerCount('error'), 1)
  })
})

it('control characters → escaped in JSON, round-trip', () => {
  const reader = createReader()
  const agent = 'a\u009b31m\u007f\u0085\u202e\u2028 ü'
  createLog('info', createLogSink(reader.stream))('info', 'http.request', { agent })
  const [line = ''] = reader.lines
  assert.doesNotMatch(line, /[\u007f-\u009f\u2028-\u202e]/)
  assert.equal(JSON.parse(line).agent, agent)
})

describe('text format', () => {
  it('readable fields without terminal control characters', () => {
    const reader = createReader()
    const log = createLog('info', createLogSink(reader.stream), 'text')
    log('warn', 'a.b', { path: '/ipfs/x', why: 'two words', bad: '\u001b[2J\u009b\u202e\n', none: undefined, ms: 1.5 })
    assert.equal(reader.lines.length, 1)
    assert.match(
      reader.lines[0] ?? '',
      /^\d{4}-\S+Z WARN {2}a\.b path=\/ipfs\/x why="two words" bad="\\u001b\[2J\\u009b\\u202e\\n" ms=1\.5$/,
    )
  })

  it('terminal → text, otherwise JSON', () => {
    assert.equal(formatFor('auto', { isTTY: true }), 'text')
    assert.equal(formatFor('auto', {}), 'json')
    assert.equal(formatFor('json', { isTTY: true }), 'json')
  })
})
