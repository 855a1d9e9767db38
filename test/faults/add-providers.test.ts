// Fault: providers that are down, lie, drop the connection or hang, in every combination. An upload gets 200 where enough
// providers hold it and 502 where not; what was accepted reaches every provider in the end.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { afterEach, beforeEach, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { CID } from 'multiformats/cid'
import { Failure } from '../../src/core/failure.ts'
import { type Adding, type AddingOptions, idle, multipart, post, startAdding } from '../support/adding.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { keptIn, nothing } from '../support/kept.ts'
import { type Behaviour, scriptedProvider } from '../support/scripted-provider.ts'

const add = (adding: Adding, body: Uint8Array | string = randomBytes(2000), query = '') =>
  post(`${adding.url}/add${query}`, multipart([{ fileName: 'a', body }]))

async function withAdding(options: AddingOptions, work: (adding: Adding) => Promise<void>): Promise<void> {
  const adding = await startAdding(options)
  try {
    await work(adding)
  } finally {
    await adding.close()
  }
}

async function until(isTrue: () => boolean | Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 500; tries++) {
    if (await isTrue()) return
    await sleep(5)
  }
  assert.fail('it did not come about')
}

const cidOf = (json: Record<string, unknown>): CID =>
  CID.parse(String((json['cids'] as string[])[0]).slice('/ipfs/'.length))

describe('providers during an upload', () => {
  it('any three, confirm 2 → 200 when two hold it', async () => {
    const behaviours: readonly Behaviour[] = ['holds', 'dead', 'lies', 'breaks']
    const others = ['one', 'two', 'three'].map((name) => scriptedProvider(name))
    await withAdding({ others, withoutEmbedded: true, confirm: 2 }, async (adding) => {
      // Each combination once, with a holding provider last where there is one. Refusals first: they leave nothing.
      const combinations = behaviours.flatMap((three, index) =>
        behaviours
          .slice(index)
          .flatMap((one, from) => behaviours.slice(index + from).map((two) => [one, two, three] as const)),
      )
      const holding = (three: readonly Behaviour[]) => three.filter((one) => one === 'holds').length
      for (const three of combinations.sort((a, b) => holding(a) - holding(b))) {
        for (const [index, other] of others.entries()) other.behaviour = three[index] as Behaviour
        const { status, json, body } = await add(adding)
        const cid = status === 200 ? cidOf(json).toString() : ''
        assert.equal(status, holding(three) >= 2 ? 200 : 502, `${three}: ${body}`)
        if (status === 200) assert.ok(others.filter(({ held }) => held.has(cid)).length >= 2, String(three))
        else {
          const outcomes = json['outcomes'] as { provider: string; outcome: string }[]
          assert.deepEqual(
            outcomes.map(({ provider }) => provider),
            ['one', 'two', 'three'],
          )
          assert.ok(outcomes.filter(({ outcome }) => ['transient', 'content'].includes(outcome)).length >= 2)
          assert.deepEqual(await keptIn(adding.data), nothing)
          assert.equal(adding.tiers.size, 0)
        }
      }
    })
  })

  it('silent provider, enough others confirm → not waited for', async () => {
    const silent = scriptedProvider('silent', 'hangs')
    await withAdding({ others: [silent] }, async (adding) => {
      const { status } = await add(adding)
      assert.equal(status, 200)
      await until(() => silent.asked === 1)
    })
    assert.equal(silent.asked, 0, 'it is let go when the gateway stops')
  })

  it('abandoned while a provider is silent → stays abandoned', async () => {
    const clock = createFakeClock()
    const silent = scriptedProvider('silent', 'hangs')
    const others = [scriptedProvider('good'), silent]
    await withAdding({ others, confirm: 2, pinMs: 5000, clock }, async (adding) => {
      const { pins } = adding.uploads
      const { json } = await add(adding)
      const state = async () => (await pins.find(cidOf(json)))?.providers['silent']?.state
      assert.equal(await pins.giveUp(cidOf(json), 'silent'), 'abandoned')
      await clock.advance(6000)
      await until(() => silent.asked === 0)
      for (let checks = 0; checks < 20; checks++, await sleep(5)) assert.equal(await state(), 'abandoned')
    })
  })

  it('silent provider → fails at its timeout', async () => {
    await withAdding({ others: [scriptedProvider('silent', 'hangs')], confirm: 'all', pinMs: 50 }, async (adding) => {
      const { status, json } = await add(adding)
      assert.equal(status, 502)
      const outcomes = json['outcomes'] as { provider: string; outcome: string; detail?: string }[]
      assert.deepEqual(outcomes[0], { provider: 'local', outcome: 'not waited for' })
      assert.match(outcomes[1]?.detail ?? '', /silent: no answer within/)
      assert.deepEqual(await keptIn(adding.data), nothing)
    })
  })

  it('unexpected provider error → failure, message not exposed', async () => {
    await withAdding({ others: [scriptedProvider('odd', 'crashes')], confirm: 'all' }, async (adding) => {
      const { status, body } = await add(adding)
      assert.equal(status, 502)
      assert.doesNotMatch(body, /a bug/)
    })
  })

  it('provider that fetches by CID → asked later, never counts alone', async () => {
    const byCid = scriptedProvider('psa', 'holds', { takesBytes: false })
    const first = scriptedProvider('first', 'dead')
    await withAdding({ others: [byCid, first], withoutEmbedded: true, confirm: 1 }, async (adding) => {
      assert.equal((await add(adding)).status, 502)
      assert.equal(byCid.pins, 0)
      first.behaviour = 'holds'
      assert.equal((await add(adding)).status, 200)
      await until(() => byCid.held.size === 1)
    })
  })

  it('provider that fetches by CID, embedded store only → asked', async () => {
    const byCid = scriptedProvider('psa', 'holds', { takesBytes: false })
    await withAdding({ others: [byCid], confirm: 'all' }, async (adding) => {
      const { status, json, body } = await add(adding)
      assert.equal(status, 200, body)
      assert.equal(byCid.held.size, 1)
      byCid.behaviour = 'dead'
      assert.equal((await add(adding)).status, 502)
      assert.equal((await adding.uploads.pins.waiting()).uploads, 0)
      assert.ok(await adding.embedded.store.has(cidOf(json)))
    })
  })

  it('failed upload → earlier pin of the file stays', async () => {
    const other = scriptedProvider('other', 'holds')
    await withAdding({ others: [other], confirm: 'all' }, async (adding) => {
      const { json } = await add(adding, 'the same')
      await idle(adding)
      other.behaviour = 'dead'
      assert.equal((await add(adding, 'the same')).status, 502)
      assert.equal(await adding.embedded.status(cidOf(json), new AbortController().signal), 'pinned')
      assert.ok(await adding.embedded.store.has(cidOf(json)))
    })
  })

  it('same file uploaded twice concurrently → pinned once', async () => {
    const slow = scriptedProvider('slow', 'hangs')
    await withAdding({ others: [slow], withoutEmbedded: true, pinMs: 300 }, async (adding) => {
      const answers = await Promise.all([add(adding, 'twice'), add(adding, 'twice'), add(adding, 'twice')])
      assert.deepEqual(
        answers.map(({ status }) => status),
        [502, 502, 502],
      )
      assert.equal(slow.pins, 1)
      assert.deepEqual(await keptIn(adding.data), nothing)
    })
  })
})

describe('two requests with one file', () => {
  it('joined upload with another name → its name is kept', async () => {
    const provider = scriptedProvider('gated')
    const { pin } = provider
    const gate = Promise.withResolvers<void>()
    const gated = Object.assign(provider, {
      async pin(...of: Parameters<typeof pin>) {
        await gate.promise
        return pin(...of)
      },
    })
    await withAdding({ others: [gated], confirm: 2 }, async ({ uploads }) => {
      const body = Buffer.from('one file, two names')
      const add = (name: string) => uploads.add(Readable.from([body]), { name })
      const first = add('first')
      const second = add('second')
      await sleep(100)
      gate.resolve()
      const [{ cid }] = await Promise.all([first, second])
      assert.equal((await uploads.pins.find(cid))?.name, 'second')
      assert.equal(provider.pins, 1)
    })
  })
})

describe('multipart upload, one part not confirmed', () => {
  const good = 'a good one'
  const bad = 'a bad one!!!'
  /** Takes all but the bad one. */
  function choosy(name: string) {
    const provider = scriptedProvider(name)
    const { pin } = provider
    return Object.assign(provider, {
      async pin(...[upload, signal]: Parameters<typeof pin>) {
        if (upload.bytes === bad.length)
          throw new Failure('upstream-error', 'not that one', { source: 'provider', facts: { class: 'content' } })
        return pin(upload, signal)
      },
    })
  }
  const both = (adding: Adding) =>
    post(`${adding.url}/add`, multipart([{ fileName: 'a', body: good }, { fileName: 'b', body: bad }, { body: good }]))

  it('no part is kept', async () => {
    await withAdding({ others: [choosy('choosy')], confirm: 'all' }, async (adding) => {
      const { status, json } = await both(adding)
      assert.equal(status, 502)
      assert.match(String(json['detail']), /1 of 2|0 of 2/)
      assert.deepEqual(await keptIn(adding.data), nothing)
      assert.equal(adding.tiers.size, 0)
      assert.equal(adding.uploads.admission.bytes, 0)
    })
  })

  it('part pinned by an earlier upload → kept', async () => {
    await withAdding({ others: [choosy('choosy')], confirm: 'all' }, async (adding) => {
      const { json } = await add(adding, good)
      await idle(adding)
      assert.equal((await both(adding)).status, 502)
      assert.equal(await adding.embedded.status(cidOf(json), new AbortController().signal), 'pinned')
      assert.ok(await adding.embedded.store.has(cidOf(json)))
    })
  })

  it('concurrent upload of a part → not affected', async () => {
    const slow = choosy('slow')
    const { pin } = slow
    slow.pin = async (upload, signal) => {
      await sleep(upload.bytes === bad.length ? 150 : 20)
      return pin(upload, signal)
    }
    await withAdding({ others: [slow], confirm: 'all' }, async (adding) => {
      const together = both(adding)
      await until(() => slow.pins > 0)
      const [alone, ...more] = await Promise.all([1, 2, 3].map(() => add(adding, good)))
      assert.ok(alone)
      assert.equal((await together).status, 502)
      for (const { status, body } of [alone, ...more]) assert.equal(status, 200, body)
      await idle(adding)
      assert.equal(await adding.embedded.status(cidOf(alone.json), new AbortController().signal), 'pinned')
      assert.ok(await adding.embedded.store.has(cidOf(alone.json)))
    })
  })

  it('one part refused → no further provider is asked', async () => {
    for (let later = 0; later < 12; later++) {
      const remote = choosy('remote')
      const { pin } = remote
      const gate = Promise.withResolvers<void>()
      let waiting = 0
      remote.pin = async (upload, signal) => {
        if (++waiting === 2) gate.resolve()
        await gate.promise
        if (upload.bytes === bad.length) return pin(upload, signal)
        for (let turns = 0; turns < later; turns++) await undefined
        return upload.cid
      }
      const local = scriptedProvider('elsewhere', 'hangs', { local: true })
      await withAdding({ others: [remote, local], confirm: 'all' }, async (adding) => {
        const began = performance.now()
        assert.equal((await both(adding)).status, 502)
        assert.ok(performance.now() - began < 5000, `${later} turns later: the client waited for a pin`)
        assert.equal(local.asked, 0, `${later} turns later`)
      })
    }
  })

  it('failed request → no retry of the upload it waited for', async () => {
    const gate = Promise.withResolvers<void>()
    let isRefused = false
    const remote = choosy('remote')
    const { pin } = remote
    remote.pin = async (upload, signal) => {
      if (upload.bytes === bad.length) {
        if (upload.name === 'first') await gate.promise
        else isRefused = true
      }
      return pin(upload, signal)
    }
    const of = (...bodies: string[]) => multipart(bodies.map((body) => ({ fileName: body, body })))
    await withAdding({ others: [remote], confirm: 'all' }, async ({ url, uploads }) => {
      const first = post(`${url}/add?name=first`, of(good, bad))
      await until(() => remote.held.size === 1)
      const second = post(`${url}/add?name=second`, of(good, 'another bad!'))
      await until(() => isRefused)
      await sleep(100)
      gate.resolve()
      assert.deepEqual(
        (await Promise.all([first, second])).map(({ status }) => status),
        [502, 502],
      )
      assert.deepEqual(remote.names, ['first'])
      await uploads.close()
    })
  })

  it('joined upload aborted midway → the waiting request confirms it', async () => {
    const slow = choosy('slow')
    const { pin } = slow
    let asked = 0
    slow.pin = async (upload, signal) => {
      asked++
      await sleep(upload.bytes === bad.length ? 100 : 200)
      signal.throwIfAborted()
      return pin(upload, signal)
    }
    await withAdding({ others: [slow], confirm: 'all' }, async (adding) => {
      const together = both(adding)
      await until(() => asked === 2)
      const { status, body } = await add(adding, good)
      assert.equal((await together).status, 502)
      assert.equal(status, 200, body)
    })
  })
})

describe('accepted upload missing at a provider', () => {
  it("retried with backoff and the provider's Retry-After", async () => {
    const clock = createFakeClock()
    const down = scriptedProvider('down', 'dead')
    await withAdding({ others: [down], clock, random: () => 0.5 }, async (adding) => {
      const { status, json } = await add(adding)
      assert.equal(status, 200)
      await until(() => down.pins === 1 && down.asked === 0)
      await clock.advance(900)
      assert.equal(down.pins, 1)
      await clock.advance(200)
      await until(() => down.pins === 2 && down.asked === 0)
      down.retryAfterMs = 60_000
      await clock.advance(2100)
      await until(() => down.pins === 3 && down.asked === 0)
      await clock.advance(59_000)
      assert.equal(down.pins, 3)
      down.behaviour = 'holds'
      await clock.advance(10_000)
      await until(() => down.held.has(cidOf(json).toString()))
      await idle(adding)
      const { uploads, waiting } = await keptIn(adding.data)
      assert.deepEqual([uploads.length, waiting], [1, []])
    })
  })

  it('failure that needs the operator → retried rarely', async () => {
    const clock = createFakeClock()
    const refusing = scriptedProvider('refusing', 'auth')
    await withAdding({ others: [refusing], clock }, async (adding) => {
      const { json } = await add(adding)
      await until(async () => (await adding.uploads.pins.find(cidOf(json)))?.providers['refusing']?.class === 'auth')
      await clock.advance(5 * 60_000)
      assert.equal(refusing.pins, 1)
      assert.equal(await adding.uploads.pins.giveUp(cidOf(json), 'refusing'), 'abandoned')
      await idle(adding)
      assert.equal(await adding.uploads.pins.giveUp(cidOf(json), 'refusing'), 'unknown')
    })
  })

  it('delivered by the next process', async () => {
    const data = await mkdtemp(join(tmpdir(), 'cidgate-add-'))
    try {
      const body = randomBytes(3_000_000)
      const good = scriptedProvider('good')
      const down = scriptedProvider('down', 'dead')
      const options = { data, others: [good, down], withoutEmbedded: true, maxBytes: 10_000_000 }
      let cid = ''
      await withAdding(options, async (adding) => {
        const { status, json } = await add(adding, body)
        assert.equal(status, 200)
        cid = cidOf(json).toString()
        await until(() => down.pins > 0 && down.asked === 0)
      })
      assert.equal((await keptIn(data)).blocks, 4)
      down.behaviour = 'holds'
      await withAdding(options, async (adding) => {
        await until(() => down.held.has(cid))
        await idle(adding)
      })
      assert.equal(Buffer.compare(down.held.get(cid) as Buffer, body), 0)
      assert.equal((await keptIn(data)).blocks, 0)
    } finally {
      await rm(data, { recursive: true, force: true })
    }
  })
})

describe('accepted upload not at every provider', () => {
  let data: string
  beforeEach(async () => {
    data = await mkdtemp(join(tmpdir(), 'cidgate-add-'))
  })
  afterEach(() => rm(data, { recursive: true, force: true }))
  const good = scriptedProvider('good')
  it('its providers not configured → kept', async () => {
    await withAdding(
      { data, others: [scriptedProvider('gone', 'dead')], withoutEmbedded: true, queue: true },
      async (a) => assert.equal((await add(a)).status, 200),
    )
    const blocks = async () => (await keptIn(data)).blocks
    const options = { data, withoutEmbedded: true, queue: true }
    await withAdding({ ...options, others: [] }, async () => {
      // Nothing is to happen: there is nothing to wait for but a moment in which it would.
      for (let looks = 0; looks < 20; looks++, await sleep(5)) assert.equal(await blocks(), 1)
    })
    await withAdding({ ...options, others: [good] }, async (a) => {
      const [cid] = (await keptIn(data)).uploads
      await a.uploads.pins.bring(CID.parse(cid as string))
      await until(() => good.held.size > 0)
    })
  })

  it('re-uploaded → delivered to the providers required now', async () => {
    const down = scriptedProvider('down', 'dead')
    const options = { data, others: [down], withoutEmbedded: true, queue: true }
    await withAdding(options, async (adding) => assert.equal((await add(adding, 'the same')).status, 200))
    await withAdding({ ...options, queue: false }, async (adding) => {
      assert.equal((await add(adding, 'the same')).status, 502, 'what waits is no reason to say that it is held')
      down.behaviour = 'holds'
      assert.equal((await add(adding, 'the same')).status, 200)
      await idle(adding)
      assert.equal(String([...down.held.values()][0]), 'the same')
    })
  })

  it('provider got damaged blocks → repeated upload delivers at once', async () => {
    const other = scriptedProvider('other', 'content')
    await withAdding({ data, others: [other] }, async (adding) => {
      assert.equal((await add(adding, 'the same')).status, 200)
      await until(async () => other.pins === 1 && other.asked === 0)
      other.behaviour = 'holds'
      assert.equal((await add(adding, 'the same')).status, 200)
      await idle(adding)
      assert.equal(String([...other.held.values()][0]), 'the same')
    })
  })

  it('shutdown → kept; two gateways do not both resume it', async () => {
    const slow = scriptedProvider('slow', 'hangs')
    const options: AddingOptions = { data, others: [slow], confirm: 2, pinMs: 300 }
    await withAdding(options, async (old) => {
      // Pinned here already, and waiting for the other one.
      const first = add(old, 'the same')
      await until(() => slow.asked === 1)
      await withAdding({ data, others: [good], confirm: 2 }, async (newer) => {
        const { status, json } = await add(newer, 'the same')
        assert.equal(status, 200)
        assert.equal((await first).status, 502)
        assert.equal(await newer.embedded.status(cidOf(json), new AbortController().signal), 'pinned')
      })
    })
    const down = scriptedProvider('down', 'hangs')
    const one = await startAdding({ data, others: [down] })
    const two = await startAdding({ data, others: [down] })
    const three = await startAdding({ data, others: [down] })
    try {
      assert.equal((await add(three)).status, 200)
      await until(() => down.asked === 1)
      await one.close()
      // Where the one that asked is the one that left, another asks again.
      for (let looks = 0; looks < 20; looks++, await sleep(5)) assert.ok(down.asked <= 1)
    } finally {
      for (const adding of [two, three]) await adding.close()
    }
  })

  it('not accepted before a stop → nothing left', async () => {
    const byCid = scriptedProvider('psa', 'hangs', { takesBytes: false })
    await withAdding({ data, others: [byCid], confirm: 'all' }, async (adding) => {
      void add(adding, randomBytes(200_000)).catch(() => {})
      await until(() => byCid.asked === 1)
    })
    assert.deepEqual(await keptIn(data), nothing)
  })

  it("last copy is deleted only on the operator's request", async () => {
    const options = { data, others: [scriptedProvider('down', 'dead')], withoutEmbedded: true, queue: true }
    await withAdding(options, async (adding) => {
      const { json } = await add(adding)
      const { pins } = adding.uploads
      assert.equal(await pins.giveUp(cidOf(json), 'down'), 'only-copy')
      assert.equal((await keptIn(data)).blocks, 1)
      assert.equal(await pins.giveUp(cidOf(json), 'down', true), 'abandoned')
      await idle(adding)
    })
    assert.deepEqual(await keptIn(data), nothing, 'no record says that it is held')
  })
})

it('shared tier down → asked again after a pause only', async () => {
  const clock = createFakeClock()
  let asked = 0
  const retrieval = {
    ...{ sharedTiers: ['s3'], store: async () => ['s3'], forget() {} },
    async bring() {
      asked++
      throw new Failure('unavailable', 'it is down', { source: 'tier' })
    },
  }
  await withAdding({ retrieval, clock }, async (adding) => {
    assert.equal((await add(adding)).status, 200)
    await until(() => asked === 1)
    for (let checks = 0; checks < 20; checks++, await sleep(5)) assert.equal(asked, 1)
    await clock.advance(1500)
    await until(() => asked === 2)
    for (let checks = 0; checks < 20; checks++, await sleep(5)) assert.equal(asked, 2)
  })
})

describe('pinning.acceptWhileUnavailable', () => {
  it('provider down → 200 when stored here, delivered later with name', async () => {
    const clock = createFakeClock()
    const down = scriptedProvider('down', 'dead')
    await withAdding({ others: [down], confirm: 'all', queue: true, clock }, async (adding) => {
      const { status, json } = await add(adding, 'x', '?name=report')
      assert.equal(status, 200)
      assert.ok(await adding.embedded.store.has(cidOf(json)))
      down.behaviour = 'holds'
      await clock.advance(2000)
      await until(() => down.held.size === 1)
      assert.deepEqual(down.names, ['report'])
    })
  })

  it('provider can never hold it → 502', async () => {
    await withAdding({ others: [scriptedProvider('odd', 'lies')], confirm: 'all', queue: true }, async (adding) => {
      assert.equal((await add(adding)).status, 502)
      assert.deepEqual(await keptIn(adding.data), nothing)
    })
  })
})

describe('upload during shutdown', () => {
  it('503, nothing stored', async () => {
    await withAdding({}, async (adding) => {
      const whole = multipart([{ fileName: 'a', body: randomBytes(100_000) }])
      const goOn = Promise.withResolvers<void>()
      async function* slowly() {
        yield whole.subarray(0, 50_000)
        await goOn.promise
        yield whole.subarray(50_000)
      }
      const answer = post(`${adding.url}/add`, slowly())
      await until(() => adding.uploads.admission.bytes > 0)
      await adding.uploads.close()
      const { status, headers } = await answer
      goOn.resolve()
      assert.equal(status, 503)
      assert.ok(Number(headers['retry-after']) >= 1)
      await until(async () => (await keptIn(adding.data)).strays.length === 0)
    })
  })
})

describe('too many concurrent uploads', () => {
  it('above the number or byte limit → 503 with Retry-After', async () => {
    const hanging = scriptedProvider('hanging', 'hangs')
    const clock = createFakeClock()
    const options = { others: [hanging], withoutEmbedded: true, concurrency: 2, pinMs: 20_000, clock }
    await withAdding(options, async (adding) => {
      const answers = Promise.all([add(adding), add(adding), add(adding)])
      await until(() => hanging.asked === 2 && adding.uploads.admission.waiting === 1)
      await clock.advance(5000)
      await clock.advance(20_000)
      const all = await answers
      assert.deepEqual(all.map(({ status }) => status).sort(), [502, 502, 503])
      assert.ok(Number(all.find(({ status }) => status === 503)?.headers['retry-after']) >= 1)
    })
    await withAdding({ maxPendingBytes: 1000 }, async (adding) => {
      assert.equal((await add(adding, randomBytes(900))).status, 200)
      assert.equal((await add(adding, randomBytes(1100))).status, 503)
      await idle(adding)
      assert.equal(adding.uploads.admission.bytes, 0)
    })
  })
})
