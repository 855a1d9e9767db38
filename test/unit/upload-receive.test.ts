// The clocks of an upload: silence, a trickle, and time that is ours and not the sender's.
import assert from 'node:assert/strict'
import type { IncomingMessage } from 'node:http'
import { PassThrough } from 'node:stream'
import { describe, it } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { isFailure } from '../../src/core/failure.ts'
import { receive } from '../../src/upload/receive.ts'
import { boundary } from '../support/adding.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const head = `--${boundary}\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n`
const tail = `\r\n--${boundary}--\r\n`
const limits = { maxBytes: 2 ** 24, idleMs: 30_000, minRate: 1024, graceMs: 30_000 }

function begin(options: { minRate?: number; take?: (bytes: AsyncIterable<Uint8Array>) => Promise<number> } = {}) {
  const clock = createFakeClock()
  const body = new PassThrough({ highWaterMark: 2 ** 24 })
  const request = Object.assign(body, {
    headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
    complete: false,
  }) as unknown as IncomingMessage
  body.once('end', () => {
    request.complete = true
  })
  const count = async (bytes: AsyncIterable<Uint8Array>) => {
    let sum = 0
    for await (const piece of bytes) sum += piece.byteLength
    return sum
  }
  const settled = receive(
    request,
    { ...limits, minRate: options.minRate ?? limits.minRate, clock },
    options.take ?? count,
  )
    .then((counts) => ({ counts, failure: undefined }))
    .catch((error: unknown) => ({ counts: undefined, failure: isFailure(error) ? error : assert.fail(String(error)) }))
  let isOver = false
  void settled.then(() => {
    isOver = true
  })
  body.write(head)
  return {
    body,
    settled,
    isOver: () => isOver,
    /** A piece of so many bytes, and then so many seconds of nothing. */
    async sends(bytes: number, seconds: number) {
      if (bytes > 0) body.write(Buffer.alloc(bytes, 'x'))
      await setImmediate()
      for (let second = 0; second < seconds; second++) await clock.advance(1000)
    },
  }
}

describe('upload timeouts', () => {
  it('silence → ends at the timeout, not before', async () => {
    const upload = begin({ minRate: 0 })
    await upload.sends(100_000, 29)
    await upload.sends(1, 29)
    assert.equal(upload.isOver(), false)
    await upload.sends(0, 3)
    const { failure } = await upload.settled
    assert.equal(failure?.kind, 'upload-too-slow')
    assert.match(failure?.message ?? '', /no data for 30000 ms/)
  })

  for (const bytes of [1, 500])
    it(`${bytes} a second, below the minimum → refused after grace`, async () => {
      const upload = begin()
      for (let second = 0; second < 30; second++) await upload.sends(bytes, 1)
      assert.equal(upload.isOver(), false)
      for (let second = 0; second < 3; second++) await upload.sends(bytes, 1)
      const { failure } = await upload.settled
      assert.match(failure?.message ?? '', /less than 1024 bytes a second/)
      assert.equal(failure?.kind, 'upload-too-slow')
    })

  it('slow but above the minimum → continues', async () => {
    const upload = begin()
    for (let second = 0; second < 600; second++) await upload.sends(1100, 1)
    upload.body.end(tail)
    assert.deepEqual((await upload.settled).counts, [660_000])
  })

  it('time without reading → not charged to the sender', async () => {
    const gate = Promise.withResolvers<void>()
    const upload = begin({
      async take(bytes) {
        let sum = 0
        for await (const piece of bytes) {
          await gate.promise
          sum += piece.byteLength
        }
        return sum
      },
    })
    for (let piece = 0; piece < 20; piece++) await upload.sends(100_000, 0)
    await upload.sends(0, 50)
    assert.equal(upload.isOver(), false)
    gate.resolve()
    await upload.sends(0, 1)
    upload.body.end(tail)
    assert.deepEqual((await upload.settled).counts, [2_000_000])
  })
})
