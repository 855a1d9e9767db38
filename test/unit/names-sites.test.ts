// Which hosts are sites, asked with every request: what that costs when DNS is well, slow or silent; and how many are
// asked for at once.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Failure } from '../../src/core/failure.ts'
import { createSites } from '../../src/names/dnslink.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const open = () => new AbortController().signal
const unavailable = new Failure('unavailable', 'nobody could be asked', { source: 'upstream' })

describe('DNSLink sites', () => {
  const make = () => {
    const clock = createFakeClock()
    const asked: { readonly domain: string; readonly signal: AbortSignal }[] = []
    const state = { answer: async (): Promise<unknown> => '/ipfs/bafkqaaa' }
    const resolve = (domain: string, signal: AbortSignal) => {
      asked.push({ domain, signal })
      return state.answer()
    }
    return { clock, asked, state, hasLink: createSites({ resolve, maxEntries: 10, clock }) }
  }

  test('follows DNS; invalid domain → no query', async () => {
    const { hasLink, state, asked } = make()
    assert.equal(await hasLink('docs.example', open()), true)
    state.answer = () => Promise.reject(unavailable)
    assert.equal(await hasLink('other.example', open()), false)
    assert.equal(await hasLink('x'.repeat(10_000), open()), false)
    assert.deepEqual(
      asked.map(({ domain }) => domain),
      ['docs.example', 'other.example'],
    )
  })

  test('had no link → waits briefly, then new link is used', async () => {
    const { hasLink, state, clock } = make()
    state.answer = () => Promise.reject(unavailable)
    await hasLink('docs.example', open())
    const slow = Promise.withResolvers<unknown>()
    state.answer = () => slow.promise
    const asked = hasLink('docs.example', open())
    await clock.advance(249)
    assert.equal(await Promise.race([asked, 'waiting']), 'waiting')
    await clock.advance(1)
    assert.equal(await asked, false)
    slow.resolve('/ipfs/bafkqaaa')
    await clock.advance(0)
    state.answer = () => clock.sleep(1_000)
    const patient = hasLink('docs.example', open())
    await clock.advance(1_000)
    assert.equal(await patient, true, 'it is a site now')
    assert.equal(clock.timers, 0)
  })

  test('client leaves → stops waiting, lookup continues', async () => {
    const { hasLink, state, asked } = make()
    state.answer = () => new Promise(() => {})
    const leaving = new AbortController()
    const work = hasLink('docs.example', leaving.signal)
    leaving.abort(new Error('left'))
    await assert.rejects(work, /left/)
    assert.equal(asked[0]?.signal.aborted, false)
  })
})
