// A tier that is dead, slow or full must not be felt by those who ask it. And one whose bytes are false is not believed.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Call, Tier } from '../../backends/tiers/contract.ts'
import { blockKey } from '../../src/core/block.ts'
import { partOf } from '../../src/core/disk/at-hand.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { type GuardOptions, guarded } from '../../src/retrieval/tiers/guarded.ts'
import { proved } from '../../src/retrieval/tiers/proved.ts'
import { bytesOf, cidOf } from '../../src/testing/tier.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { scriptedTier } from '../support/scripted-tier.ts'

const bytes = bytesOf(100)
const cid = cidOf(bytes)

function make(
  options: Partial<GuardOptions> = {},
  { shared = true, announces = false }: { readonly shared?: boolean; readonly announces?: boolean } = {},
) {
  const clock = createFakeClock()
  const tier = Object.assign(scriptedTier('far', { shared }), { announces })
  const events: string[] = []
  const log: GuardOptions['log'] = (level, event, facts) => events.push(`${level} ${event} ${facts?.['what']}`)
  return { clock, tier, events, guard: guarded(tier, { clock, log, deadlineMs: 1000, ...options }) }
}

/** How a read ends, and after how long. */
async function timed(clock: ReturnType<typeof createFakeClock>, work: Promise<unknown>) {
  const began = clock.monotonic()
  let end: { kind: string; ms: number } | undefined
  work.then(
    (value) => (end = { kind: value === undefined ? 'miss' : 'hit', ms: clock.monotonic() - began }),
    (error: unknown) => (end = { kind: isFailure(error) ? error.kind : 'other', ms: clock.monotonic() - began }),
  )
  for (let turn = 0; turn < 2000 && !end; turn++) await clock.advance(1)
  assert.ok(end, 'it never ended')
  return end
}

/** A read whose caller waits only for as long as it is worth it. */
async function patiently(clock: ReturnType<typeof createFakeClock>, guard: Tier, call: Call = {}) {
  const told = Promise.withResolvers<'overdue'>()
  const read = guard.get(cid, undefined, { ...call, overdue: () => told.resolve('overdue') })
  read.catch(() => {})
  const began = clock.monotonic()
  let end: { kind: string; ms: number } | undefined
  Promise.race([read, told.promise]).then(
    (value) => {
      const kind = value === 'overdue' ? value : value === undefined ? 'miss' : 'hit'
      end = { kind, ms: clock.monotonic() - began }
    },
    (error: unknown) => (end = { kind: isFailure(error) ? error.kind : 'other', ms: clock.monotonic() - began }),
  )
  for (let turn = 0; turn < 2000 && !end; turn++) await clock.advance(1)
  assert.ok(end, 'it never ended')
  return end
}

test('a quick tier that falls silent is waited for twice, asked three times, then passed over', async () => {
  const { clock, tier, guard, events } = make()
  tier.held.set(blockKey(cid), bytes)
  for (let turn = 0; turn < 5; turn++) assert.ok(await guard.get(cid))
  tier.isSilent = true
  for (const ms of [25, 25, 0]) assert.deepEqual(await patiently(clock, guard), { kind: 'overdue', ms })
  assert.equal(tier.waiting, 3, 'the calls go on')
  await clock.advance(400)
  assert.ok(guard.isDown)
  for (let turn = 0; turn < 10; turn++) assert.deepEqual(await patiently(clock, guard), { kind: 'unavailable', ms: 0 })
  assert.deepEqual(events, ['warn tier.circuit-open reads'])
})

for (const { usualMs, waited } of [
  { usualMs: 20, waited: 25 },
  { usualMs: 80, waited: 0 },
]) {
  test(`a tier of ${usualMs} ms that mostly misses is waited for ${waited} ms, and as usual after a hit`, async () => {
    const { clock, tier, guard, events } = make()
    const read = async (takesMs = usualMs) => {
      const wells: (boolean | undefined)[] = []
      tier.isSilent = true
      const under = guard.get(cid, undefined, { overdue: (isWell) => wells.push(isWell) })
      const began = clock.monotonic()
      for (let ms = 0; ms < takesMs && wells.length === 0; ms++) await clock.advance(1)
      const waited = clock.monotonic() - began
      for (let ms = waited; ms < takesMs; ms++) await clock.advance(1)
      tier.isSilent = false
      await tier.release()
      await under
      return wells.length > 0 ? { waited, isWell: wells[0] } : 'as usual'
    }
    for (let turn = 0; turn < 8; turn++) await read()
    assert.deepEqual(await read(usualMs + 6), { waited, isWell: true })
    tier.held.set(blockKey(cid), bytes)
    await read()
    await read()
    assert.equal(await read(), 'as usual')
    assert.equal(guard.failures, 0)
    assert.deepEqual(events, [])
  })
}

for (const { usualMs, waits } of [
  { usualMs: 20, waits: [25, 25, 0, 0] },
  { usualMs: 80, waits: [0, 0, 0, 0] },
]) {
  test(`a tier of ${usualMs} ms that mostly missed and falls silent: reads wait ${waits.join(', ')} ms`, async () => {
    const { clock, tier, guard } = make()
    tier.clock = clock
    tier.slowMs = usualMs
    for (let turn = 0; turn < 8; turn++) await timed(clock, guard.get(cid))
    tier.isSilent = true
    for (const ms of waits) {
      assert.deepEqual(await patiently(clock, guard), { kind: 'overdue', ms })
      // An upstream answers meanwhile.
      await clock.advance(10)
    }
  })
}

test('a tier that is silent from the start is waited for 100 ms, twice', async () => {
  const { clock, tier, guard } = make()
  tier.isSilent = true
  for (const ms of [100, 100, 0, 0]) assert.deepEqual(await patiently(clock, guard), { kind: 'overdue', ms })
  await clock.advance(400)
  assert.deepEqual(await patiently(clock, guard), { kind: 'unavailable', ms: 0 })
})

test('hundreds of calls at one moment are released together, and count once each', async () => {
  const { clock, tier, guard } = make()
  tier.isSilent = true
  const ends = Promise.all(Array.from({ length: 300 }, () => patiently(clock, guard)))
  for (const end of await ends) assert.deepEqual(end, { kind: 'overdue', ms: 100 })
  assert.ok(guard.failures <= 300)
  await clock.advance(1000)
  assert.ok(guard.failures <= 300, `${guard.failures} failures of 300 calls`)
})

test('however long it was away, it is used again five seconds after it is back', async () => {
  const { clock, tier, guard } = make()
  await guard.put(cid, bytes)
  const read = () => guard.get(cid).catch(() => undefined)
  let longest = 0
  tier.isDown = true
  let asked = 0
  for (let awayMs = 0, lastMs = 0; awayMs < 120_000; awayMs += 100) {
    await read()
    await clock.advance(100)
    if (tier.calls.length > asked) lastMs = awayMs
    asked = tier.calls.length
    longest = Math.max(longest, awayMs - lastMs)
  }
  assert.ok(longest > 2000 && longest <= 4500, `${longest} ms between trials`)
  tier.isDown = false
  await clock.advance(4500)
  await read()
  await clock.advance(1)
  assert.deepEqual(await read(), bytes)
})

test('it comes back by itself, by a trial that no caller waits for', async () => {
  const { clock, tier, guard, events } = make()
  await guard.put(cid, bytes)
  tier.isDown = true
  for (let turn = 0; turn < 3; turn++) await assert.rejects(guard.get(cid))
  const asked = tier.calls.length
  await assert.rejects(guard.get(cid), (error) => isFailure(error, 'unavailable'))
  assert.equal(tier.calls.length, asked)
  tier.isDown = false
  await clock.advance(1000)
  assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'unavailable', ms: 0 })
  await clock.advance(1)
  assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'hit', ms: 0 })
  assert.deepEqual(events, ['warn tier.circuit-open reads', 'info tier.circuit-closed reads'])
})

test('trials of a silent tier delay no caller, one at a time, at most ten seconds apart', async () => {
  const { clock, tier, guard } = make()
  tier.isDown = true
  for (let turn = 0; turn < 3; turn++) await assert.rejects(guard.get(cid))
  tier.isDown = false
  tier.isSilent = true
  await clock.advance(1000)
  for (let turn = 0; turn < 5; turn++)
    assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'unavailable', ms: 0 })
  assert.equal(tier.waiting, 1)
  await clock.advance(1000)
  assert.equal(tier.waiting, 0, 'the trial is aborted at the deadline')
  for (let second = 0; second < 60; second++) {
    await clock.advance(1000)
    await guard.get(cid).catch(() => {})
  }
  tier.isSilent = false
  for (let second = 0; second < 12; second++) {
    await clock.advance(1000)
    await guard.get(cid).catch(() => {})
  }
  assert.ok(!guard.isDown)
})

test('a tier that is far but answers is waited for as long as it usually takes', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  tier.slowMs = 80
  tier.clock = clock
  assert.deepEqual(await patiently(clock, guard), { kind: 'hit', ms: 80 })
  assert.equal(guard.patienceMs, 160)
  tier.slowMs = 0
  for (let turn = 0; turn < 40; turn++) await guard.get(cid)
  assert.equal(guard.patienceMs, 25)
})

test('an always slow tier is asked beside others, not waited for and not passed over', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  tier.slowMs = 350
  tier.clock = clock
  assert.deepEqual(await patiently(clock, guard), { kind: 'overdue', ms: 100 })
  await clock.advance(250)
  assert.equal(guard.patienceMs, 0)
  for (let turn = 0; turn < 20; turn++) {
    assert.deepEqual(await patiently(clock, guard), { kind: 'overdue', ms: 0 })
    await clock.advance(400)
  }
  assert.ok(!guard.isDown)
  assert.equal(guard.failures, 0)
})

test('three slow answers that do come close the breaker again', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  await guard.get(cid)
  tier.isSilent = true
  const slow = [guard.get(cid), guard.get(cid), guard.get(cid)]
  await clock.advance(399)
  assert.ok(!guard.isDown)
  await clock.advance(1)
  assert.ok(guard.isDown)
  await tier.release()
  await Promise.all(slow)
  assert.ok(!guard.isDown)
})

test('a local tier is passed over for silence, not for slowness', async () => {
  const { clock, tier, guard } = make({}, { shared: false })
  await guard.get(cid)
  tier.isSilent = true
  for (let turn = 0; turn < 20; turn++) guard.get(cid).catch(() => {})
  await clock.advance(900)
  assert.ok(!guard.isDown)
  assert.equal(guard.patienceMs, 0, 'but nobody waits for it')
  await clock.advance(100)
  assert.ok(guard.isDown)
})

test('time in our queue is not held against the tier; silence empties the queue', async () => {
  const { clock, tier, guard } = make({}, { announces: true })
  const begin: (() => void)[] = []
  const get = tier.get
  tier.get = (one, signal, call) => {
    begin.push(() => call?.begun?.())
    return get(one, signal)
  }
  tier.isSilent = true
  let told = 0
  const ends = Array.from({ length: 10 }, () =>
    guard.get(cid, undefined, { overdue: () => told++ }).then(() => {}, String),
  )
  await clock.advance(200)
  assert.equal(told, 0)
  await clock.advance(50)
  assert.equal(told, 10, 'a reader does not stand in line for ever')
  assert.equal(guard.failures, 0)
  for (const go of begin.slice(0, 3)) go()
  await clock.advance(400)
  assert.ok(guard.isDown)
  for (const end of await Promise.all(ends.slice(3))) assert.match(String(end), /passed over/)
  assert.equal(tier.waiting, 3)
})

test('what fails at once says nothing about the next read of this machine’s disk', async () => {
  const { clock, tier, guard } = make({}, { shared: false })
  tier.isDown = true
  for (let turn = 0; turn < 10; turn++)
    await assert.rejects(guard.get(cid), (error) => isFailure(error, 'upstream-error'))
  assert.ok(!guard.isDown)
  tier.isDown = false
  tier.isSilent = true
  for (let turn = 0; turn < 3; turn++) guard.get(cid).catch(() => {})
  await clock.advance(1000)
  assert.ok(guard.isDown)
})

test('a disk that hangs is passed over, whichever clock gives up on it first', async () => {
  const { clock, tier, guard } = make({}, { shared: false })
  tier.get = async () => {
    await clock.sleep(1000)
    throw new Failure('timeout', 'the disk did not answer', { source: 'tier' })
  }
  for (let turn = 0; turn < 3; turn++) guard.get(cid).catch(() => {})
  await clock.advance(1000)
  assert.ok(guard.isDown)
})

test('a caller without an upstream waits until the deadline', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  await guard.get(cid)
  tier.isSilent = true
  clock.after(900, () => void tier.release())
  assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'hit', ms: 900 })
})

test('a caller without an upstream asks a tier that is passed over; that is no trial', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  tier.isDown = true
  for (let turn = 0; turn < 3; turn++) await assert.rejects(guard.get(cid))
  tier.isDown = false
  assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'unavailable', ms: 0 })
  assert.deepEqual(await timed(clock, guard.get(cid, undefined, { anyway: true })), { kind: 'hit', ms: 0 })
  assert.ok(guard.isDown)
})

test('a timer of ours that rings late is not held against the tier', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  await guard.get(cid)
  tier.isSilent = true
  const reads = [guard.get(cid), guard.get(cid), guard.get(cid)]
  for (let time = 0; time < 20; time++) await clock.jump(400)
  assert.ok(!guard.isDown)
  assert.ok(guard.patienceMs > 0)
  await tier.release()
  for (const read of reads) assert.ok(await read)
})

test('a process that is held up all the time gives up a silent tier all the same', async () => {
  const { clock, tier, guard } = make({}, { shared: false })
  await guard.get(cid)
  tier.isSilent = true
  const began = clock.monotonic()
  let gaveUpAt = Number.POSITIVE_INFINITY
  guard.get(cid).catch(() => (gaveUpAt = clock.monotonic()))
  for (let turn = 0; turn < 300; turn++) await clock.jump(40)
  assert.ok(gaveUpAt - began > 10_000 && gaveUpAt - began < 10_200, `${gaveUpAt - began} ms`)
  assert.equal(clock.timers, 0, 'no clock is left running')
})

test('while this process is held up, a remote store gets little more time, a disk more', async () => {
  for (const [shared, most] of [
    [true, 200],
    [false, 900],
  ] as const) {
    const { clock, tier, guard } = make({}, { shared })
    await guard.get(cid)
    tier.isSilent = true
    const began = clock.monotonic()
    let toldAt = Number.POSITIVE_INFINITY
    guard.get(cid, undefined, { overdue: () => (toldAt = clock.monotonic()) }).catch(() => {})
    for (let time = 0; time < 15; time++) await clock.jump(90)
    assert.ok(toldAt - began <= most, `${toldAt - began} ms`)
    assert.equal(guard.failures, 0)
  }
})

test('a client that leaves stops the call, and no failure is counted', async () => {
  const { clock, tier, guard } = make()
  tier.isSilent = true
  for (let turn = 0; turn < 10; turn++) {
    const controller = new AbortController()
    const left = assert.rejects(guard.get(cid, controller.signal), /left/)
    await clock.advance(1)
    controller.abort(new Error('left'))
    await left
  }
  await clock.advance(1)
  assert.equal(tier.waiting, 0)
  assert.ok(!guard.isDown)
  assert.equal(guard.failures, 0)
  assert.equal(clock.timers, 0, 'no clock is left running')
})

test('a few abandoned calls go on, so that their duration is learned', async () => {
  const { clock, tier, guard } = make({ failures: 100 })
  tier.held.set(blockKey(cid), bytes)
  tier.isSilent = true
  const leaving = new AbortController()
  const reads = Array.from({ length: 20 }, () => guard.get(cid, leaving.signal).catch(String))
  await clock.advance(100)
  leaving.abort(new Error('left'))
  await Promise.all(reads)
  await clock.advance(0)
  assert.equal(tier.waiting, 8)
  await clock.advance(40)
  await tier.release()
  await clock.advance(0)
  assert.equal(guard.patienceMs, 280)
})

test('hung writes: two are waited for 150 ms, after three the tier is passed over', async () => {
  const { clock, tier, guard } = make()
  tier.isSilent = true
  for (const waits of [150, 150, 0]) {
    let toldAt: number | undefined
    const began = clock.monotonic()
    guard.put(cid, bytes, undefined, { overdue: () => (toldAt = clock.monotonic()) }).catch(() => {})
    await clock.advance(150)
    assert.equal(toldAt, began + waits)
  }
  await clock.advance(400)
  assert.deepEqual(await timed(clock, guard.put(cid, bytes)), { kind: 'unavailable', ms: 0 })
  await clock.advance(1000)
  assert.deepEqual(await timed(clock, guard.put(cid, bytes)), { kind: 'unavailable', ms: 0 })
  assert.equal(tier.waiting, 4)
})

test('a tier that throws synchronously has failed, and leaves no timer', async () => {
  const { clock, tier, guard } = make()
  const get = () => {
    throw new TypeError('a bug of the store')
  }
  Object.assign(tier, { get })
  await assert.rejects(guard.get(cid), TypeError)
  assert.equal(guard.failures, 1)
  assert.equal(clock.timers, 0)
})

test('a disk that is full still reads', async () => {
  const { tier, guard } = make()
  await guard.put(cid, bytes)
  tier.isDown = true
  for (let turn = 0; turn < 5; turn++) await assert.rejects(guard.put(cid, bytes))
  await assert.rejects(guard.put(cid, bytes), (error) => isFailure(error, 'unavailable'))
  tier.isDown = false
  assert.ok(await guard.get(cid))
})

test('a failed probe makes a tier passed over before a caller waits for it', async () => {
  const { clock, tier } = make()
  const dead = { ...tier, probe: () => Promise.reject(new Error('nobody there')) }
  const guard = guarded(dead, { clock, log: silentLog })
  await assert.rejects(guard.probe?.() ?? Promise.resolve())
  assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'unavailable', ms: 0 })
})

test('false bytes are a miss, deleted and counted; true ones pass as they are', async () => {
  const tier = scriptedTier('bucket')
  const seen: string[] = []
  const honest = proved(tier, { log: silentLog, onCorrupt: (name, of) => seen.push(`${name} ${of}`) })
  assert.equal(honest.traits.trusted, true)
  tier.held.set(blockKey(cid), bytes)
  assert.equal(await honest.get(cid), bytes)
  for (const [what, wrong] of [
    ['one bit', Uint8Array.from(bytes, (byte, index) => (index === 50 ? byte ^ 1 : byte))],
    ['cut short', bytes.subarray(0, 99)],
    ['empty', new Uint8Array(0)],
    ['other bytes', bytesOf(100, 1)],
    ['too much', new Uint8Array(3 << 20)],
  ] as const) {
    tier.held.set(blockKey(cid), wrong)
    assert.equal(await honest.get(cid), undefined, what)
    assert.equal(tier.held.size, 0, `${what} is still there`)
  }
  assert.equal(honest.corrupt, 5)
  assert.deepEqual(new Set(seen), new Set([`bucket ${cid}`]))
})

test('false bytes are a miss although they cannot be deleted, and an outage stays an outage', async () => {
  const tier = scriptedTier('bucket')
  tier.held.set(blockKey(cid), bytesOf(3))
  const honest = proved({ ...tier, delete: () => Promise.reject(new Error('denied')) }, { log: silentLog })
  assert.equal(await honest.get(cid), undefined)
  tier.isDown = true
  await assert.rejects(honest.get(cid), (error) => isFailure(error, 'upstream-error'))
})

test('what is at hand is proved, whole and in part: a flipped byte is not handed out, and `get` finds and deletes it', async () => {
  const large = bytesOf(200_000, 9)
  const of = cidOf(large)
  const tier = scriptedTier('bucket')
  let asked: unknown[] = []
  const honest = proved(
    {
      ...tier,
      atHand(_cid, options) {
        asked.push(options?.part)
        const held = tier.held.get(blockKey(of))
        return held && { ...partOf(held, options?.part), size: held.byteLength }
      },
    },
    { log: silentLog },
  )
  const flipped = (at: number) => Uint8Array.from(large, (byte, index) => (index === at ? byte ^ 1 : byte))
  const hold = (bytes: Uint8Array) => tier.held.set(blockKey(of), bytes)
  const part = { from: 70_000, to: 71_000 }
  const read = () => honest.atHand?.(of, { part })?.bytes
  hold(flipped(199_999))
  assert.equal(read(), undefined, 'nothing is known of its chunks yet: all of it has to be right')
  hold(large)
  assert.deepEqual(honest.atHand?.(of)?.bytes, large)
  assert.deepEqual(read(), large.subarray(70_000, 71_000))
  asked = []
  assert.deepEqual(read(), large.subarray(70_000, 71_000))
  assert.deepEqual(asked, [{ from: 65_536, to: 81_920 }], 'no more is read than its chunks')
  assert.deepEqual(honest.atHand?.(of, { part: { from: 199_000, to: 200_000 } })?.bytes, large.subarray(199_000))
  for (const at of [70_500, 65_536, 81_919]) {
    hold(flipped(at))
    assert.equal(read(), undefined, `byte ${at}`)
    assert.equal(honest.atHand?.(of), undefined)
    hold(large)
    assert.ok(read())
  }
  hold(large.subarray(0, 80_000))
  assert.equal(read(), undefined, 'cut short')
  hold(flipped(70_500))
  assert.equal(await honest.get(of), undefined)
  assert.equal(tier.held.size, 0)
  assert.equal(honest.corrupt, 1)
})
