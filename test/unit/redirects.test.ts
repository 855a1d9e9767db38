// The rules of the _redirects specification, as a table over the example it gives.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { isFailure } from '../../src/core/failure.ts'
import { parseRedirects, redirect } from '../../src/web/site.ts'
import { calmestWorkMs } from '../support/work.ts'

const rules = parseRedirects(`
# a comment
/302-redirect-two /two.html 302\r
/source2/:code/:name /target-file?code=:code&name=:name 301
/source3/* https://example.net/target3/:splat 301
/über/* /ü/:splat 301
/a%20b/* /:splat 301
/go/:where /:where 302
/* /index.html 200
`)

const cases: [name: string, path: string, query: string, expected: unknown][] = [
  ['a rule of a file with CRLF', '/302-redirect-two', '', { kind: 'redirect', location: '/two.html', status: 302 }],
  ['the first that matches decides', '/anything', '', { kind: 'rewrite', path: '/index.html', status: 200 }],
  [
    'path segments become parameters',
    '/source2/c/n',
    '',
    { kind: 'redirect', location: '/target-file?code=c&name=n', status: 301 },
  ],
  [
    'an address elsewhere keeps the query',
    '/source3/a/b',
    'q=1',
    { kind: 'redirect', location: 'https://example.net/target3/a/b?q=1', status: 301 },
  ],
  [
    'names are the same however a rule writes them',
    '/%C3%BCber/gr%C3%BC%C3%9Fe',
    '',
    { kind: 'redirect', location: '/%C3%BC/gr%C3%BC%C3%9Fe', status: 301 },
  ],
  ['also encoded', '/a%20b/c', '', { kind: 'redirect', location: '/c', status: 301 }],
  [
    'what a placeholder takes cannot become another part of the address',
    '/go/%2F%2Fevil.example%3Fa%0D%0Ab',
    '',
    { kind: 'redirect', location: '/%2F%2Fevil.example%3Fa%0D%0Ab', status: 302 },
  ],
]
for (const [name, path, query, expected] of cases) {
  test(name, () => assert.deepEqual(redirect(rules, path, query), expected))
}

const wrong: [name: string, text: string][] = [
  ['one word', '/a'],
  ['four words', '/a /b 301 more'],
  ['a status it may not have', '/a /b 418'],
  ['no path to begin with', 'a /b'],
  ['a splat in the middle', '/a/*/b /c'],
  ['a placeholder twice', '/a/:x/:x /c'],
  ['half an escape in the target', '/a /%zz 200'],
  ['another scheme', '/a javascript:alert(1)'],
  ['too large', `/a /b\n${'#'.repeat(65 * 1024)}`],
]
for (const [name, text] of wrong) {
  test(`${name} → refused`, () =>
    assert.throws(
      () => parseRedirects(text),
      (error) => isFailure(error, 'malformed'),
    ))
}

test('many rules, path of a thousand names → fast', () => {
  const many = parseRedirects('/a/:b/* /c\n'.repeat(5950))
  const ms = calmestWorkMs(() => assert.equal(redirect(many, `/x${'/y'.repeat(1000)}`, ''), undefined))
  assert.ok(ms < 40, `${ms} ms`)
})

test("percent sign in a target's query → kept", () => {
  assert.equal(parseRedirects('/a /b?share=100% 301')[0]?.to, '/b?share=100%')
})

test('no match → undefined', () => {
  assert.equal(redirect(parseRedirects('/a /b'), '/c', ''), undefined)
})

test('target with thousands of placeholders → refused early', () => {
  const rules = parseRedirects(`/a/* /${':splat'.repeat(5000)}\n/b/* /:splat\n/c/* /${':splat'.repeat(5000)} 200`)
  const long = 'x'.repeat(15_000)
  for (const path of [`/a/${long}`, `/b/${long}`, `/c/${long}`])
    assert.throws(
      () => redirect(rules, path, ''),
      (error) => isFailure(error, 'malformed') && /8192 characters/.test(error.message),
    )
  assert.ok(redirect(rules, '/b/short', ''))
})

test('invalid file → explained', () => {
  assert.throws(() => parseRedirects('/a /b\n/c /d 301!'), /could not parse _redirects: line 2: 301! is not a status/)
  assert.throws(
    () => parseRedirects('#'.repeat(70_000)),
    /could not parse _redirects: redirects file size cannot exceed/,
  )
})

test('documentation example is valid', () => {
  const page = readFileSync(new URL('../../docs/websites.md', import.meta.url), 'utf8')
  const example = /```\n(\/old [^`]+)```/.exec(page)?.[1] ?? ''
  const found = redirect(parseRedirects(example), '/posts/2026/a/b', 'q=1')
  assert.deepEqual(found, { kind: 'redirect', location: '/archive/2026/a/b?q=1', status: 302 })
})
