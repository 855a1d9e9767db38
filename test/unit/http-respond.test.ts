// What becomes of a request that fails in a way nobody expected: one answer, one line in the log, and one id in both.
import assert from 'node:assert/strict'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { afterEach, describe, test } from 'node:test'
import express from 'express'
import { createJsonDetector } from '../../src/content/json.ts'
import { systemClock } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
import { createTrace } from '../../src/core/wire/trace.ts'
import { type AppDeps, createApp } from '../../src/http/app.ts'
import { createCompression } from '../../src/http/compression.ts'
import { createResponseCache, lasting } from '../../src/http/content/response-cache.ts'
import { createHosts } from '../../src/http/hosts.ts'
import { createLimits } from '../../src/http/limits.ts'
import { watchExchange } from '../../src/http/wire/exchange.ts'
import { createRespond, type RequestFacts } from '../../src/http/wire/problem.ts'
import { createForwarded, createRequestIds } from '../../src/http/wire/request.ts'
import { createPendingResponses } from '../../src/http/wire/write.ts'
import { openFront } from '../support/front.ts'

type Logged = { readonly error: unknown; readonly about: RequestFacts }

const open: (() => void)[] = []
afterEach(() => {
  for (const close of open.splice(0)) close()
})

async function serve(handler: (request: IncomingMessage, response: ServerResponse) => void): Promise<string> {
  const { url, close } = await openFront(handler)
  open.push(() => void close())
  return url
}

/** The public routes over a retrieval that does what a bug would. */
async function start(more: Partial<AppDeps> = {}) {
  const logged: Logged[] = []
  const failed: Failure[] = []
  const clock = systemClock
  const forwarded = createForwarded([])
  const respond = createRespond({
    mode: 'api',
    stalledMs: 60_000,
    onError: (error, about) => logged.push({ error, about }),
    onFailed: (failure) => failed.push(failure),
  })
  const deps: AppDeps = {
    retrieval: {
      begin: () => undefined,
      session() {
        throw new TypeError('a bug of ours')
      },
    } as unknown as AppDeps['retrieval'],
    names: {} as AppDeps['names'],
    hot: createResponseCache({ maxBytes: 0, maxItemBytes: 0 }),
    cached: { find: () => undefined },
    compression: createCompression({ isOn: false }),
    tiers: [],
    clock,
    limits: createLimits({ inFlight: 10, perClient: 'none', clock }),
    hosts: createHosts({ table: {}, forwarded }),
    mode: 'api',
    jsonMaxBytes: 1000,
    jsonDetector: createJsonDetector(),
    stalledMs: 60_000,
    pendingResponses: createPendingResponses(1000),
    denyRevision: () => undefined,
    watch: (request, response) => watchExchange(request, response, clock.monotonic, () => {}),
    respond,
    holds: () => false,
    requestIds: createRequestIds(forwarded),
    trace: createTrace(),
    clientOf: () => '',
    ...more,
  }
  return { url: await serve(createApp(deps).handler), logged, failed }
}

async function isTold(url: string, { logged, failed }: { logged: Logged[]; failed: Failure[] }, path: string) {
  const answer = await fetch(url + path)
  const problem = (await answer.json()) as Record<string, unknown>
  assert.equal(answer.status, 500)
  const id = answer.headers.get('x-request-id')
  assert.ok(id)
  assert.equal(problem['requestId'], id)
  assert.ok(!JSON.stringify(problem).includes('a bug of ours'), 'its own words stay here')
  assert.equal(logged.length, 1)
  const [{ error, about } = assert.fail('nothing was logged')] = logged
  assert.match(String(error instanceof Error && error.stack), /TypeError: a bug of ours\n\s+at /)
  assert.deepEqual(about, { request: id, method: 'GET', path: path.split('?')[0] })
  assert.deepEqual(
    failed.map(({ kind }) => kind),
    ['internal'],
  )
}

describe('bug', () => {
  test("during a read → logged once with the client's id", async () => {
    const at = await start()
    await isTold(at.url, at, '/ipfs/bafkqaaa?secret=x')
  })

  test('during host lookup → logged and counted', async () => {
    const hosts = createHosts({ table: {}, forwarded: createForwarded([]) })
    const at = await start({
      hosts: {
        ...hosts,
        locate() {
          throw new TypeError('a bug of ours')
        },
      },
    })
    await isTold(at.url, at, '/ipfs/bafkqaaa')
  })

  test('error in a route → logged and counted', async () => {
    const at = await start({
      routes: [{ name: 'add', at: /^\/mine$/, answer: (_context, next) => next(new TypeError('a bug of ours')) }],
    })
    await isTold(at.url, at, '/mine')
  })

  test('after the first byte → logged, response looks truncated', async () => {
    const logged: Logged[] = []
    const respond = createRespond({
      mode: 'api',
      stalledMs: 60_000,
      onError: (error, about) => logged.push({ error, about }),
    })
    const url = await serve((request, response) => {
      response.writeHead(200, { 'Content-Length': '100' })
      response.write('half')
      respond.failed(request, response, new TypeError('a bug of ours'))
    })
    await assert.rejects(fetch(url).then((answer) => answer.text()))
    assert.equal(logged.length, 1)
  })
})

describe('expected failures', () => {
  const failures = [
    new Failure('malformed', 'asked wrongly', { source: 'client' }),
    new Failure('not-found', 'it is not here', { source: 'upstream' }),
    new Failure('upstream-error', 'a provider failed', { source: 'provider' }),
    new Failure('cancelled', 'the client left', { source: 'client' }),
  ]
  for (const failure of failures)
    test(`${failure.kind} → counted, not logged`, async () => {
      const logged: Logged[] = []
      const failed: Failure[] = []
      const respond = createRespond({
        mode: 'api',
        stalledMs: 60_000,
        onError: (error, about) => logged.push({ error, about }),
        onFailed: (one) => failed.push(one),
      })
      const app = express()
      app.use((request, response) => void respond.failed(request, response, failure))
      await fetch(await serve(app)).then(
        (answer) => answer.text(),
        () => {},
      )
      assert.deepEqual([logged, failed], [[], [failure]])
    })
})

test('response cache shares full blocks, copies views and borrowed memory', () => {
  const block = new Uint8Array([1, 2, 3, 4])
  assert.equal(lasting(block, false).buffer, block.buffer)
  assert.deepEqual([...lasting(block, false)], [1, 2, 3, 4])
  for (const copy of [lasting(block, true), lasting(block.subarray(1), false)]) {
    assert.notEqual(copy.buffer, block.buffer)
    assert.equal(copy.at(-1), 4)
  }
})
