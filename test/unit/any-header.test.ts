// Headers of any form, of clients, proxies and other services: what is made of them is in order, or they are refused.
import assert from 'node:assert/strict'
import type { IncomingMessage } from 'node:http'
import { isIP } from 'node:net'
import { test } from 'node:test'
import fc from 'fast-check'
import { isFailure } from '../../src/core/failure.ts'
import { isHost, parseRetryAfter } from '../../src/core/wire/http.ts'
import { matches } from '../../src/http/content/negotiate.ts'
import { createForwarded, readTarget } from '../../src/http/wire/request.ts'
import { boundaryOf, partNameOf } from '../../src/upload/receive.ts'
import { anyText } from '../support/any-text.ts'
import { runs } from '../support/property.ts'

const words = (...all: string[]) => fc.array(fc.constantFrom(...all), { maxLength: 8 }).map((some) => some.join(''))
const host = words(...'aZ0.-_~:@/?#[]%\\ \t\0é', 'gate.example', '127.0.0.1', '::1', ':80', '%41', 'xn--', '@')

test("any Host → accepted only if it is a URL's host", () => {
  let count = 0
  fc.assert(
    fc.property(host, (text) => {
      if (!isHost(text)) return
      count++
      const url = URL.parse(`http://${text}`)
      if (url) assert.deepEqual([url.username, url.password, url.pathname, url.search, url.hash], ['', '', '/', '', ''])
    }),
    runs(1000),
  )
  assert.ok(count > 50, `${count} were hosts`)
})

test('any request target → a path on this host, or refused', () => {
  const target = fc.oneof(
    anyText({ maxLength: 20 }).map((rest) => `/${rest}`),
    words('/', '/ipfs/', 'http://', 'https://', 'gate.example', '?', '#', '\\', '*', '..', '%', ':', '@', 'a', '//'),
    anyText({ maxLength: 20 }),
  )
  let count = 0
  fc.assert(
    fc.property(
      target,
      fc.oneof(fc.constantFrom('gate.example', ''), host),
      fc.constantFrom(1, 1, 0, 2),
      (url, named, times) => {
        const rawHeaders = Array.from({ length: times }, () => ['Host', named]).flat()
        const request = { url, rawHeaders, headers: times > 0 ? { host: named } : {}, httpVersion: '1.1' }
        try {
          const { path, search } = readTarget(request as unknown as IncomingMessage)
          assert.match(`${path}?${search}`, /^(\/|\*\?)[^#\\]*$/s)
          assert.equal(times, 1)
          count++
        } catch (error) {
          assert.ok(isFailure(error, 'malformed'), String(error))
        }
      },
    ),
    runs(1000),
  )
  assert.ok(count > 50, `${count} were read`)
})

test('any X-Forwarded-* → valid values from trusted proxies only', () => {
  const chain = fc.array(
    fc.oneof(
      fc.constantFrom('10.0.0.1', '9.9.9.9', '[::1]:80', '::ffff:10.0.0.1', '1.2.3.4:5', 'unknown', ''),
      anyText(),
    ),
    { maxLength: 4 },
  )
  const scheme = words('http', 'https', 'HTTPS', ',', ' ', 'javascript:')
  const forwarded = createForwarded(['10.0.0.0/8', 'fd00::/8'])
  fc.assert(
    fc.property(chain, host, scheme, fc.boolean(), (addresses, named, said, isProxy) => {
      const remoteAddress = isProxy ? '10.1.1.1' : '192.0.2.1'
      const headers = {
        host: 'own.example',
        'x-forwarded-for': addresses.join(', '),
        'x-forwarded-host': named,
        'x-forwarded-proto': said,
      }
      const request = { headers, socket: { remoteAddress } } as unknown as IncomingMessage
      const [address, toHost] = [forwarded.addressOf(request), forwarded.hostOf(request)]
      assert.ok(isIP(address) !== 0, address)
      assert.ok(isHost(toHost), toHost)
      assert.match(forwarded.schemeOf(request), /^https?$/)
      if (!isProxy) assert.deepEqual([address, toHost], [remoteAddress, 'own.example'])
    }),
    runs(500),
  )
})

test('any If-None-Match → matches by its tags', () => {
  const tag = fc.string({ unit: fc.constantFrom(...'ab, *W/;=\\é'), maxLength: 4 })
  const listed = fc
    .tuple(tag, fc.boolean())
    .map(([text, isWeak]) => ({ text, header: `${isWeak ? 'W/' : ''}"${text}"` }))
  fc.assert(
    fc.property(fc.array(listed, { maxLength: 4 }), tag, fc.constantFrom(',', ', ', ' ,\t'), (tags, own, comma) => {
      const header = tags.map((one) => one.header).join(comma)
      const isThere = tags.some(({ text }) => text === own)
      for (const etag of [`"${own}"`, `W/"${own}"`])
        assert.equal(matches(header, etag), isThere, `${header} and ${etag}`)
    }),
    runs(500),
  )
  fc.assert(
    fc.property(anyText(), (header) => assert.equal(typeof matches(header, '"a"'), 'boolean')),
    runs(100),
  )
})

test('any Retry-After → a time up to a day, or none', () => {
  const value = fc.oneof(
    words('0', '1', '99999999999', '-', '+', '.', 'e', ' ', 'Sat, 21 Nov 2026 00:00:00 GMT', 'Infinity', 'NaN'),
    anyText(),
  )
  fc.assert(
    fc.property(value, fc.nat(), (text, now) => {
      const ms = parseRetryAfter(text, now)
      assert.ok(ms === undefined || (ms >= 0 && ms <= 86_400_000), `${text}: ${ms}`)
    }),
    runs(500),
  )
})

test('any upload Content-Type → RFC 2046 boundary, or refused', () => {
  const type = words(
    'multipart/form-data',
    '; ',
    ';',
    'boundary',
    '=',
    '"',
    '\\',
    'a',
    ' ',
    '\t',
    'b'.repeat(71),
    ',',
    'é',
  )
  fc.assert(
    fc.property(
      fc.oneof(
        type,
        type.map((rest) => `multipart/form-data; boundary=${rest}`),
      ),
      (text) => {
        try {
          assert.match(boundaryOf(text), /^[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]$/)
        } catch (error) {
          assert.ok(isFailure(error, 'malformed'), String(error))
        }
      },
    ),
    runs(500),
  )
})

test('any part Content-Disposition → one name, or none', () => {
  const value = words(
    ...['form-data', '; ', ';', 'name', 'filename', '*', '=', '"', '\\', 'data', "utf-8''", '%41', '%', 'é'],
  )
  fc.assert(
    fc.property(
      fc.oneof(
        value,
        value.map((rest) => `form-data; name="data"; ${rest}`),
      ),
      (text) => {
        const named = partNameOf(text)
        if (named?.path !== undefined) assert.ok(named.isFile, text)
        if (named?.name !== undefined) assert.match(text, /;[ \t]*name[ \t]*=/i)
      },
    ),
    runs(500),
  )
})
