// From a Failure to an HTTP error: status, what caches may keep of it, and what the client reads.
import assert from 'node:assert/strict'
import { createServer, get, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { Failure, type FailureKind, type FailureOptions, failureKinds } from '../../src/core/failure.ts'
import { asFailure, createRespond, type How, type Mode, statusOf, table } from '../../src/http/wire/problem.ts'
import { HttpRefusal } from '../../src/http/wire/request.ts'
import { RequestRecord } from '../../src/observe/requests.ts'

type Context = Pick<How, 'requestRecord' | 'accept'> & { readonly mode: Mode }

let next: { failure: Failure; context: Context }
const server = createServer((request, response) => {
  const { mode, ...how } = next.context
  createRespond({ mode, stalledMs: 60_000, onError() {} }).failed(request, response, next.failure, how)
})
before(() => new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve)))
after(() => {
  server.closeAllConnections()
  server.close()
})

type Sent = { readonly status: number; readonly headers: IncomingMessage['headers']; readonly text: string }

function send(failure: Failure, context: Context): Promise<Sent> {
  next = { failure, context }
  const { port } = server.address() as AddressInfo
  return new Promise((resolve, reject) => {
    get({ port, host: '127.0.0.1' }, (response) => {
      let text = ''
      response.setEncoding('utf8').on('data', (piece) => (text += piece))
      response.on('end', () => resolve({ status: response.statusCode ?? 0, headers: response.headers, text }))
    }).on('error', reject)
  })
}

const failure = (kind: FailureKind, options: Partial<FailureOptions> = {}): Failure =>
  new Failure(kind, 'what happened', { source: 'upstream', ...options })

test('every kind has a row, and vice versa', () => {
  assert.deepEqual(Object.keys(table).sort(), [...failureKinds].sort())
})

describe('status', () => {
  const rows: [kind: FailureKind, options: Partial<FailureOptions>, api: number, web: number][] = [
    ['not-found', {}, 404, 404],
    ['not-found', { facts: { onlyIfCached: true } }, 412, 412],
    ['path-not-found', {}, 404, 404],
    ['timeout', {}, 404, 504],
    ['unavailable', {}, 404, 502],
    ['upload-too-slow', { source: 'client' }, 408, 408],
    ['throttled', { source: 'client' }, 429, 429],
    ['too-large', { source: 'client' }, 413, 413],
    ['denied', {}, 410, 410],
    ['denied', { facts: { legal: true } }, 451, 451],
    ['malformed', { source: 'client' }, 400, 400],
    ['malformed', { source: 'content' }, 422, 500],
    ['unsupported', {}, 406, 406],
    ['unsupported', { facts: { remainder: 'a/b' } }, 501, 501],
    ['overloaded', {}, 503, 503],
    ['disk-full', { source: 'ours' }, 507, 507],
    ['disk-error', { source: 'ours' }, 500, 500],
    ['upstream-error', { source: 'provider' }, 502, 502],
    ['internal', {}, 500, 500],
  ]
  for (const [kind, options, api, web] of rows) {
    test(`${kind} ${JSON.stringify(options)} → ${api}, ${web}`, () => {
      assert.deepEqual([statusOf(failure(kind, options), 'api'), statusOf(failure(kind, options), 'web')], [api, web])
    })
  }
})

test('HTTP refusal → its own status', () => {
  const refusal = new HttpRefusal('unsupported', 'not with PUT', { source: 'client', status: 405 })
  assert.deepEqual([statusOf(refusal, 'api'), statusOf(refusal, 'web')], [405, 405])
})

test('misspelled or foreign detail → type error', () => {
  const all = [
    new Failure('denied', 'no', { source: 'ours', facts: { legal: true } }),
    // @ts-expect-error There is no such fact.
    new Failure('denied', 'no', { source: 'ours', facts: { leagl: true } }),
    // @ts-expect-error It is one of `denied`.
    new Failure('upstream-error', 'no', { source: 'ours', facts: { legal: true } }),
    // @ts-expect-error Not a class of failures of a provider.
    new Failure('upstream-error', 'no', { source: 'provider', facts: { class: 'passing' } }),
  ]
  // @ts-expect-error Statuses are given in http alone.
  assert.ok(all.every(({ facts }) => facts.status === undefined))
})

describe('cacheability of errors', () => {
  const rows: [
    name: string,
    failure: Failure,
    mode: 'api' | 'web',
    cacheControl: string,
    retryAfter: string | undefined,
  ][] = [
    ['remembered for 4.2 s', failure('not-found', { retryAfterMs: 4200 }), 'api', 'public, max-age=4', '5'],
    ['remembered for less than a second', failure('not-found', { retryAfterMs: 900 }), 'api', 'no-store', '1'],
    ['not remembered', failure('not-found'), 'api', 'no-store', '5'],
    ['nobody could be asked', failure('unavailable', { retryAfterMs: 4200 }), 'api', 'no-store', '5'],
    ['nobody could be asked, web', failure('unavailable', { retryAfterMs: 4200 }), 'web', 'no-store', '5'],
    ['too much to do', failure('overloaded', { retryAfterMs: 1000 }), 'api', 'no-store', '1'],
    ['a bad request', failure('malformed', { source: 'client' }), 'api', 'no-store', undefined],
    ['denied', failure('denied'), 'api', 'no-store', undefined],
    [
      'only if cached',
      failure('not-found', { facts: { onlyIfCached: true }, retryAfterMs: 9000 }),
      'api',
      'no-store',
      undefined,
    ],
  ]
  for (const [name, one, mode, cacheControl, retryAfter] of rows) {
    test(name, async () => {
      const { headers } = await send(one, { mode })
      assert.deepEqual([headers['cache-control'], headers['retry-after']], [cacheControl, retryAfter])
      assert.equal(headers['access-control-allow-origin'], '*')
      assert.equal(headers['x-content-type-options'], 'nosniff')
    })
  }
})

test('attempts only on statuses caused by other services', async () => {
  const requestRecord = new RequestRecord()
  requestRecord.attempt({ upstream: 'one', outcome: 'timeout', ms: 12 })
  const lost = JSON.parse((await send(failure('not-found'), { mode: 'api', requestRecord })).text) as Record<
    string,
    unknown
  >
  assert.deepEqual(lost, {
    type: 'urn:problem-type:cidgate:not-found',
    title: 'Not found',
    status: 404,
    detail: 'what happened',
    message: 'what happened',
    attempts: [{ upstream: 'one', outcome: 'timeout', ms: 12 }],
  })
  const wrong = await send(failure('malformed', { source: 'client' }), { mode: 'api', requestRecord })
  assert.equal('attempts' in (JSON.parse(wrong.text) as object), false)
  assert.equal(wrong.headers.connection, 'close')
})

test('other errors → internal, message not exposed', () => {
  const found = asFailure(new Error('password=hunter2'))
  assert.deepEqual([found.kind, found.message.includes('hunter2')], ['internal', false])
})
