// The rules of the _redirects specification, as a table over the example it gives.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { isFailure } from '../../src/core/failure.ts'
import { parseRedirects, redirect } from '../../src/web/site.ts'
import { calmestWorkMs } from '../support/work.ts'

const rules = parseRedirects(`
# a comment
/redirect-one /one.html
/301-redirect-one /one.html 301
/302-redirect-two /two.html 302\r
/200-index /index.html 200
/posts/:year/:month/:day/:title /articles/:year/:month/:day/:title 301
/splat/* /redirected-splat/:splat 301
/source1/* /target-file?static-query1=static-val1&static-query2=static-val2 301
/source2/:code/:name /target-file?code=:code&name=:name 301
/source3/* https://example.net/target3/:splat 301
/not-found/* /404.html 404
/gone/* /410.html 410
/unavail/* /451.html 451
/über/* /ü/:splat 301
/a%20b/* /:splat 301
/go/:where /:where 302
/* /index.html 200
`)

const cases: [name: string, path: string, query: string, expected: unknown][] = [
  [
    '301 is what is meant without a status',
    '/redirect-one',
    '',
    { kind: 'redirect', location: '/one.html', status: 301 },
  ],
  ['302', '/302-redirect-two', '', { kind: 'redirect', location: '/two.html', status: 302 }],
  ['200 is a rewrite', '/200-index', '', { kind: 'rewrite', path: '/index.html', status: 200 }],
  [
    'placeholders',
    '/posts/2022/01/01/hello',
    '',
    { kind: 'redirect', location: '/articles/2022/01/01/hello', status: 301 },
  ],
  ['a splat takes the rest', '/splat/a/b', '', { kind: 'redirect', location: '/redirected-splat/a/b', status: 301 }],
  ['404 with a page', '/not-found/x', '', { kind: 'rewrite', path: '/404.html', status: 404 }],
  ['410 with a page', '/gone/x/y', '', { kind: 'rewrite', path: '/410.html', status: 410 }],
  ['451 with a page', '/unavail/x', '', { kind: 'rewrite', path: '/451.html', status: 451 }],
  ['the first that matches decides', '/anything', '', { kind: 'rewrite', path: '/index.html', status: 200 }],
  [
    'the query of the client wins over that of the rule',
    '/source1/x',
    'static-query2=dynamic&more=1',
    { kind: 'redirect', location: '/target-file?static-query1=static-val1&static-query2=dynamic&more=1', status: 301 },
  ],
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
