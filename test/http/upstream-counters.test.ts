// What /metrics counts of upstreams: who is out says why, also where no reader but a look found out.
import assert from 'node:assert/strict'
import { createServer, type RequestListener, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import supertest from 'supertest'
import { startGateway, type TestGateway } from '../support/gateway.ts'

let server: Server
let at: TestGateway
afterEach(async () => {
  await at.close()
  server.closeAllConnections()
  server.close()
})

async function start(answer: RequestListener, upstream: Record<string, unknown>, probeEvery: string | number) {
  server = createServer((request, response) => {
    request.resume()
    answer(request, response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  at = await startGateway({
    upstreams: [{ name: 'one', url, allowPrivate: true, ...upstream }],
    config: { retrieval: { probeEvery } },
  })
}

async function counted(): Promise<Record<string, number>> {
  const { text } = await supertest(at.gateway.admin).get('/metrics')
  const lines = text.matchAll(/^cidgate_upstream_outcomes_total\{upstream="one",outcome="(\w+)"\} (\d+)$/gm)
  const [, asked] = /^cidgate_upstream_requests_total\{upstream="one"\} (\d+)$/m.exec(text) ?? []
  return {
    ...Object.fromEntries([...lines].map(([, outcome, value]) => [outcome, Number(value)])),
    asked: Number(asked),
  }
}

async function untilOut(state: string): Promise<void> {
  const line = `cidgate_upstream_state{upstream="one",state="${state}"} 1`
  for (let tries = 0; !(await supertest(at.gateway.admin).get('/metrics')).text.includes(line); tries++) {
    assert.ok(tries < 1000, `it is never ${state}`)
    await sleep(20)
  }
}

const lie: RequestListener = ({ url = '' }, response) => {
  if (url.startsWith('/api/v0/version')) return response.setHeader('content-type', 'application/json').end('{}')
  const type = url.startsWith('/api/v0/') ? 'application/octet-stream' : 'application/vnd.ipld.raw'
  response.setHeader('content-type', type).end('a lie')
}

for (const use of ['trustless', 'kubo'])
  test(`${use}: probe with wrong bytes increments hash mismatches`, async () => {
    await start(lie, { use }, '1h')
    await untilOut('incompatible')
    const { asked, hash_mismatch } = await counted()
    assert.deepEqual({ asked, hash_mismatch }, { asked: 1, hash_mismatch: 1 })
  })

const throttle: RequestListener = (_request, response) => {
  response.writeHead(429, { 'retry-after': '600' }).end()
}

test('rate-limited probe → counts as a request', async () => {
  await start(throttle, {}, '1h')
  await untilOut('rate-limited')
  const { asked, throttled } = await counted()
  assert.deepEqual({ asked, throttled }, { asked: 1, throttled: 1 })
})

test('rate-limited name lookup → counts as a request', async () => {
  await start(throttle, {}, 0)
  await fetch(`${at.url}/ipns/k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8`)
  await untilOut('rate-limited')
  const { asked, throttled } = await counted()
  assert.deepEqual({ asked, throttled }, { asked: 1, throttled: 1 })
})
