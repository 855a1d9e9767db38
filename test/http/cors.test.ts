// What a browser asks before a page of another origin may read or upload (the CORS preflight), and what it is told.
import assert from 'node:assert/strict'
import { type IncomingHttpHeaders, request } from 'node:http'
import { after, before, describe, test } from 'node:test'
import { startGateway, type TestGateway } from '../support/gateway.ts'

const cid = 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'
const name = 'k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r'

for (const types of ['api', 'web'] as const) {
  describe(`preflight, ${types} mode`, () => {
    let at: TestGateway
    before(async () => {
      at = await startGateway({
        config: {
          responses: { types },
          hosts: { 'gw.example': { subdomains: true }, 'bytes.example': { trustless: true } },
        },
      })
    })
    after(() => at.close())

    const operations: readonly (readonly [method: string, path: string, host?: string])[] = [
      ['GET', `/ipfs/${cid}`],
      ['GET', `/ipfs/${cid}/below/it?format=car`],
      ['HEAD', `/ipfs/${cid}`],
      ['GET', `/ipns/${name}`],
      ['GET', '/openapi.json'],
      ['POST', '/add'],
      ['POST', '/add?schema=evidence'],
      ['GET', `/ipfs/${cid}`, 'gw.example'],
      ['GET', '/', `${cid}.ipfs.gw.example`],
      ['GET', `/ipfs/${cid}?format=raw`, 'bytes.example'],
    ]
    // With node:http, because fetch does not let its caller name another host.
    const ask = (path: string, more: Record<string, string>) =>
      new Promise<{ status: number | undefined; headers: IncomingHttpHeaders }>((resolve, reject) => {
        const headers = { Origin: 'https://page.example', ...more }
        const asked = request(`${at.url}${path}`, { method: 'OPTIONS', headers, agent: false }, (answer) => {
          answer.resume().once('end', () => resolve({ status: answer.statusCode, headers: answer.headers }))
        })
        asked.once('error', reject).end()
      })

    // What libraries for tracing, errors and clients of APIs add, and a name that nobody has thought of yet.
    const added = 'baggage,pragma,sentry-trace,traceparent,tracestate,x-api-key,x-datadog-trace-id,x-not-thought-of-yet'

    for (const [method, path, host] of operations) {
      test(`${method} ${host ?? ''}${path} → any header allowed`, async () => {
        const answer = await ask(path, {
          ...(host && { Host: host }),
          'Access-Control-Request-Method': method,
          'Access-Control-Request-Headers': added,
        })
        assert.equal(answer.status, 204)
        const told = (header: string) =>
          String(answer.headers[header] ?? '')
            .toLowerCase()
            .split(/\s*,\s*/)
        assert.deepEqual(told('access-control-allow-origin'), ['*'])
        assert.ok(told('access-control-allow-methods').includes(method.toLowerCase()))
        const headers = told('access-control-allow-headers')
        for (const one of added.split(',')) assert.ok(headers.includes(one), one)
        for (const one of ['authorization', 'content-type', 'range']) assert.ok(headers.includes(one), one)
        assert.equal(new Set(headers).size, headers.length)
        assert.ok(told('vary').includes('access-control-request-headers'))
        assert.equal(answer.headers['access-control-allow-credentials'], undefined)
      })
    }

    test('no requested headers → the default ones', async () => {
      for (const path of [`/ipfs/${cid}`, '/add', '/openapi.json']) {
        const { headers } = await ask(path, { 'Access-Control-Request-Method': 'GET' })
        assert.match(String(headers['access-control-allow-headers']), /Authorization, .*Content-Type, .*Range/)
        assert.match(String(headers.vary), /Access-Control-Request-Headers/)
      }
    })

    test('invalid or already listed header names → not repeated', async () => {
      const asked = 'range, x-one, X-ONE, ,"quoted", two words, <b>, x-one'
      const { headers } = await ask('/add', { 'Access-Control-Request-Headers': asked })
      const told = String(headers['access-control-allow-headers']).split(', ')
      assert.deepEqual(told.slice(-2), ['x-one', 'X-ONE'])
      assert.equal(told.filter((one) => one.toLowerCase() === 'range').length, 1)
    })

    test('no response allows credentials', async () => {
      for (const [path, method] of [
        [`/ipfs/${cid}`, 'GET'],
        ['/openapi.json', 'GET'],
        ['/add', 'POST'],
        ['/nothing', 'GET'],
      ] as const) {
        const answer = await fetch(`${at.url}${path}`, { method, headers: { Origin: 'https://page.example' } })
        assert.equal(answer.headers.get('access-control-allow-origin'), '*')
        assert.equal(answer.headers.get('access-control-allow-credentials'), null)
        await answer.arrayBuffer()
      }
    })
  })
}
