// What thin mode writes anew: parts one behind the other, at the pace of who reads them.
import assert from 'node:assert/strict'
import type { Readable } from 'node:stream'
import { describe, it } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { Failure } from '../../src/core/failure.ts'
import { createOnward } from '../../src/upload/thin.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const late = () => new Failure('upstream-error', 'it took nothing', { source: 'provider' })

function begin() {
  const clock = createFakeClock()
  return { clock, onward: createOnward({ isKubo: false, stuckMs: 1000, clock, late }) }
}

async function* pieces(count: number, bytes: number) {
  for (let piece = 0; piece < count; piece++) yield new Uint8Array(bytes).fill(0x78)
}

/** What it has at this moment: `read` gives all of it in Node 24 and one piece in Node 26. */
function allOf(stream: Readable): string {
  let all = ''
  for (let piece = stream.read(); piece !== null; piece = stream.read()) all += piece
  return all
}

describe('body forwarded by thin mode', () => {
  it('unambiguous for every parser, complete only when ended', async () => {
    const { onward } = begin()
    const { signal } = new AbortController()
    for (const bytes of [3, 2]) for await (const _ of onward.part(pieces(1, bytes), signal));
    const open = allOf(onward.stream)
    assert.equal(onward.hasEnded(), false)
    onward.end()
    assert.equal(onward.hasEnded(), true)
    const form = await new Response(open + allOf(onward.stream), {
      headers: { 'content-type': onward.contentType },
    }).formData()
    const files = form.getAll('data') as File[]
    assert.deepEqual(await Promise.all(files.map(async (file) => [file.name, file.type, await file.text()])), [
      ['data-1', 'application/octet-stream', 'xxx'],
      ['data-2', 'application/octet-stream', 'xx'],
    ])
    await assert.rejects(new Response(open, { headers: { 'content-type': onward.contentType } }).formData())
  })

  it('waits for its reader, fails at the timeout', async () => {
    const { onward, clock } = begin()
    let sent = 0
    const done = (async () => {
      for await (const piece of onward.part(pieces(100, 50_000), new AbortController().signal)) sent += piece.byteLength
    })()
    const failed = assert.rejects(done, /it took nothing/)
    await setImmediate()
    const before = sent
    assert.ok(before < 200_000, `${before}`)
    await clock.advance(900)
    allOf(onward.stream)
    await setImmediate()
    await clock.advance(900)
    assert.ok(sent > before)
    await clock.advance(200)
    await failed
    assert.ok(sent < 500_000, `${sent}`)
    assert.equal(clock.timers, 0)
  })

  it('upload over → stops waiting', async () => {
    const { onward, clock } = begin()
    const stop = new AbortController()
    const done = (async () => {
      for await (const _ of onward.part(pieces(100, 50_000), stop.signal));
    })()
    await setImmediate()
    stop.abort(new Failure('cancelled', 'the client left', { source: 'client' }))
    await assert.rejects(done, /the client left/)
    assert.equal(clock.timers, 0)
  })
})
