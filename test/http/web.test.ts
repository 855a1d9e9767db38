// Web mode as a browser meets it: types, index.html, listings, documents, error pages and the rules of a site.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { UnixFS } from 'ipfs-unixfs'
import type { CID } from 'multiformats/cid'
import {
  addCbor,
  addDagJson,
  addDirectory,
  addFile,
  addNode,
  addSymlink,
  type BlockMap,
  noise,
  text,
} from '../support/fixtures.ts'
import { type Fetched, fetchAll, metricsOf, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const gatewayHost = 'gateway.test'
const png = Buffer.concat([Buffer.from([0x89]), Buffer.from('PNG\r\n\x1a\n'), Buffer.alloc(100)])
const page = '<!doctype html><title>home</title><script>document.title = 1</script>'
const rules = `
/old /new.html
/found /new.html 302
/posts/:year/:title /articles/:year/:title 308
/go/* /to/:splat 301
/app/* /app/index.html 200
/docs-of/* /sub/ 200
/lost/* /404.html 404
/gone/* /410.html 410
/legal/* /451.html 451
/nowhere/* /not-there.html 200
/with/* /new.html?fixed=1&kept=1 301
`

let upstream: ProgrammableUpstream
let at: TestGateway
let site: CID
let bare: CID
let hamt: CID
let broken: CID
let large: CID
let misled: CID
const blocks: BlockMap = new Map()
const alone: Record<string, CID> = {}

before(async () => {
  site = await addDirectory(blocks, {
    'index.html': text(page),
    'new.html': text('<p>new'),
    'app/index.html': text('<p>the app'),
    'app/real.js': text('1'),
    'sub/deep/ą ę.txt': text('deep'),
    'sub/image': png,
    'sub/data': text('{"a":1}'),
    'sub/film.mp4': noise(2_500_000, 3),
    'sub/long.txt': new Uint8Array(2_500_000).fill(0x61),
    'sub/edge': text(`x${'ü'.repeat(2000)}`),
    'sub/latin.html': Buffer.from('<meta charset=latin1><p>\xe4', 'latin1'),
    'sub/picture.svg': text('<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>'),
    'sub/paper.pdf': text('%PDF-1.7'),
    'sub/<img src=x>.txt': text('x'),
    'sub/read.md': text('# Ü <b>not bold</b>'),
    '404.html': text('<p>not here'),
    '410.html': text('<p>gone'),
    '451.html': text('<p>not allowed'),
    _redirects: text(rules),
  })
  bare = await addDirectory(blocks, { 'b.txt': text('b'), 'a/x': text('x'), 'b10.txt': text('c') })
  hamt = await addDirectory(
    blocks,
    Object.fromEntries(Array.from({ length: 1500 }, (_, index) => [`n${index}`, text(`${index}`)])),
    { sharded: true },
  )
  broken = await addDirectory(blocks, { _redirects: text('/a /b 301!'), 'found.html': text('<p>found') })
  misled = await addDirectory(blocks, {
    _redirects: text('/dots /a/../b 200\n/other /found.html 200'),
    'found.html': text('<p>found'),
  })
  large = await addDirectory(blocks, { _redirects: text('#'.repeat(70_000)) })
  for (const [name, bytes] of Object.entries({
    plain: 'hello',
    html: page,
    json: '{"a":1}',
    marked: '\ufeff{"a":1}',
    empty: '',
  }))
    alone[name] = (await addFile(blocks, text(bytes))).cid
  alone['png'] = (await addFile(blocks, png)).cid
  alone['cbor'] = addCbor(blocks, { hello: 'world', link: alone['plain'] })
  alone['dagJson'] = addDagJson(blocks, { hello: 'world' })
  const link = addSymlink(blocks, 'target')
  const Links = [{ Name: 'link', Hash: link, Tsize: 1 }]
  alone['linked'] = addNode(blocks, { Data: new UnixFS({ type: 'directory' }).marshal(), Links })
  upstream = await startUpstream({ blocks })
  at = await startGateway({
    upstreams: [{ name: 'one', url: upstream.url }],
    config: { responses: { types: 'web' }, hosts: { [gatewayHost]: { subdomains: true } } },
  })
})
after(async () => {
  await at.close()
  await upstream.close()
})

type Headers = Record<string, string>
const get = (path: string, headers: Headers = {}): Promise<Fetched> => fetchAll(at.url + path, headers)
/** On an origin of its own. */
const own = (root: CID, path: string, headers: Headers = {}): Promise<Fetched> =>
  get(path, { Host: `${root}.ipfs.${gatewayHost}`, ...headers })
// fetch asks for gzip of itself, and node:http, which the GETs go by, does not.
const head = async (path: string): Promise<Response> =>
  fetch(at.url + path, { method: 'HEAD', headers: { 'Accept-Encoding': 'identity' } })
const asBrowser = { Accept: 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8' }
const body = (answer: Fetched): string => answer.body.toString()
const sub = (name: string): string => `/ipfs/${site}/sub/${name}`

describe('media types in web mode', () => {
  const utf8 = 'text/plain; charset=utf-8'
  const rows: [name: string, path: () => string, type: string][] = [
    ['by name', () => sub('film.mp4'), 'video/mp4'],
    ['by bytes', () => sub('image'), 'image/png'],
    ['by bytes, of a file without a name', () => `/ipfs/${alone['png']}`, 'image/png'],
    ['JSON by what it holds', () => sub('data'), 'application/json'],
    ['JSON behind a byte order mark', () => `/ipfs/${alone['marked']}`, 'application/json'],
    ['text', () => `/ipfs/${alone['plain']}`, utf8],
    ['text of several blocks', () => sub('long.txt'), utf8],
    ['text, cut in a character where the look ends', () => sub('edge'), utf8],
    ['nothing at all', () => `/ipfs/${alone['empty']}`, utf8],
    ['a page', () => `/ipfs/${site}/new.html`, 'text/html; charset=utf-8'],
    ['a page without a name', () => `/ipfs/${alone['html']}`, 'text/html; charset=utf-8'],
    ['a page in another encoding', () => sub('latin.html'), 'text/html'],
    ['by ?filename=', () => `/ipfs/${alone['plain']}?filename=style.css`, 'text/css; charset=utf-8'],
    ['?filename= wins over the name', () => `${sub('film.mp4')}?filename=a.bin`, 'application/octet-stream'],
    ['dag-cbor', () => `/ipfs/${alone['cbor']}`, 'application/vnd.ipld.dag-cbor'],
    ['dag-json', () => `/ipfs/${alone['dagJson']}`, 'application/vnd.ipld.dag-json'],
    ['a symlink', () => `/ipfs/${alone['linked']}/link`, 'inode/symlink'],
  ]
  for (const [name, path, type] of rows) {
    test(`${name}: ${type}, by GET, HEAD, range and from memory`, async () => {
      const first = await get(path())
      assert.equal(first.status, 200, body(first).slice(0, 300))
      assert.equal(first.headers['content-type'], type)
      assert.equal(first.headers['x-content-type-options'], 'nosniff')
      assert.equal((await head(path())).headers.get('content-type'), type)
      assert.equal((await get(path())).headers['content-type'], type)
      if (first.body.byteLength === 0) return
      const end = first.body.byteLength - 1
      const part = await get(path(), { Range: `bytes=${end}-${end}` })
      assert.equal(part.status, 206)
      assert.equal(part.headers['content-type'], type)
      assert.deepEqual(part.body, first.body.subarray(end))
    })
  }
  test('range → first block and its own blocks only', async () => {
    const { cid } = await addFile(blocks, new Uint8Array(6_000_000).fill(0x61))
    const sent = upstream.sentBytes
    assert.equal((await get(`/ipfs/${cid}`, { Range: 'bytes=5999990-5999999' })).status, 206)
    assert.equal((await head(`/ipfs/${cid}`)).headers.get('content-type'), utf8)
    assert.ok(upstream.sentBytes - sent < 3_200_000, `${upstream.sentBytes - sent} bytes came`)
  })
  test('type known by name → first block not read', async () => {
    const { cid } = await addFile(blocks, noise(3_000_000, 77))
    const sent = upstream.sentBytes
    const { headers } = await get(`/ipfs/${cid}?filename=a.mp4`, { Range: 'bytes=2999990-2999999' })
    assert.equal(headers['content-type'], 'video/mp4')
    assert.ok(upstream.sentBytes - sent < 1_000_000, `${upstream.sentBytes - sent} bytes came`)
  })
  test('formats → as in api mode', async () => {
    assert.equal((await get(`/ipfs/${site}?format=raw`)).headers['content-type'], 'application/vnd.ipld.raw')
    const car = await get(`/ipfs/${site}/`, { Accept: 'application/vnd.ipld.car' })
    assert.match(String(car.headers['content-type']), /^application\/vnd\.ipld\.car/)
  })
})

describe('directories', () => {
  test('no trailing slash → 301 with query, normalized', async () => {
    for (const [path, location] of [
      [`/ipfs/${site}`, `/ipfs/${site}/`],
      [`/ipfs/${site}/sub?a=1&b=%20`, `/ipfs/${site}/sub/?a=1&b=%20`],
      [`/ipfs/${site}//sub///deep`, `/ipfs/${site}/sub/deep/`],
      [`/ipfs/${bare}/%61`, `/ipfs/${bare}/a/`],
    ] as const) {
      const answer = await get(path)
      assert.equal(answer.status, 301)
      assert.equal(answer.headers.location, location)
      assert.equal(answer.headers['access-control-allow-origin'], '*')
    }
  })
  test('own origin, no trailing slash → redirect stays on the host', async () => {
    assert.equal((await own(site, '/sub/deep')).headers.location, '/sub/deep/')
    assert.equal((await own(site, '//sub')).headers.location, '/sub/')
  })
  test("index.html → served with the directory's ETag", async () => {
    const answer = await get(`/ipfs/${site}/app/`)
    assert.equal(body(answer), '<p>the app')
    assert.equal(answer.headers['content-type'], 'text/html; charset=utf-8')
    assert.equal(answer.headers['cache-control'], 'public, max-age=29030400, immutable')
    const roots = String(answer.headers['x-ipfs-roots']).split(',')
    assert.equal(roots.length, 2)
    assert.equal(answer.headers['etag'], `"${roots[1]}"`)
    assert.equal((await get(`/ipfs/${site}/app/`, { 'If-None-Match': `W/"${roots[1]}"` })).status, 304)
    assert.match(String((await get(`/ipfs/${site}/app/`)).headers['cache-status']), /detail=responses/)
    assert.equal((await head(`/ipfs/${site}/app/`)).headers.get('content-length'), '10')
    assert.equal(body(await get(`/ipfs/${site}/app/`, { Range: 'bytes=3-5' })), 'the')
  })
  test('no index.html → listing', async () => {
    const answer = await get(`/ipfs/${bare}/`, asBrowser)
    assert.equal(answer.status, 200)
    assert.equal(answer.headers['content-type'], 'text/html; charset=utf-8')
    assert.match(String(answer.headers['etag']), new RegExp(`^W/"DirIndex-.*_CID-${bare}"$`))
    assert.equal(answer.headers['cache-control'], 'public, max-age=604800, stale-while-revalidate=2678400')
    assert.equal(answer.headers['vary'], 'Accept, Accept-Encoding')
    assert.match(String(answer.headers['content-security-policy']), /default-src 'none'; style-src 'sha256-/)
    assert.equal(answer.headers['x-ipfs-roots'], `${bare}`)
    assert.ok(body(answer).includes(`<a href="/ipfs/${bare}/b.txt">b.txt</a>`))
    assert.ok(!body(answer).includes('>..<'), 'there is nothing above a root')
    const etag = String(answer.headers['etag'])
    for (const tag of [etag, etag.slice('W/'.length), `"${etag}"`])
      assert.equal((await get(`/ipfs/${bare}/`, { 'If-None-Match': tag })).status, 304)
    assert.equal((await head(`/ipfs/${bare}/`)).headers.get('etag'), etag)
  })
  for (const accept of ['text/html', 'application/json'])
    test(`listing depends on the cache → weak ETag, ${accept}`, async () => {
      const fresh = await startGateway({
        upstreams: [{ name: 'one', url: upstream.url }],
        config: { responses: { types: 'web' } },
      })
      try {
        const listing = (headers = {}) => fetchAll(`${fresh.url}/ipfs/${bare}/`, { accept, ...headers })
        const cold = await listing()
        assert.equal((await fetchAll(`${fresh.url}/ipfs/${bare}/a/x`)).status, 200)
        const warm = await listing()
        assert.notEqual(body(cold), body(warm), 'what the tiers hold is told')
        const tag = String(cold.headers.etag)
        assert.equal(warm.headers.etag, tag)
        assert.match(tag, /^W\//)
        assert.equal((await listing({ 'if-none-match': tag })).status, 304)
      } finally {
        await fresh.close()
      }
    })
  test('HAMT listing → sorted', async () => {
    const html = body(await get(`/ipfs/${hamt}/`))
    const names = [...html.matchAll(/<\/svg><a href="[^"]+">([^<]+)/g)].map(([, name]) => name)
    assert.deepEqual(
      names,
      Array.from({ length: 1500 }, (_, index) => `n${index}`),
    )
  })
  test('hostile name → escaped', async () => {
    const html = body(await get(`/ipfs/${site}/sub/`))
    assert.doesNotMatch(html, /<img/)
    assert.ok(html.includes('&lt;img src=x&gt;.txt'))
    const [, href] = /href="([^"]+)">&lt;img/.exec(html) ?? []
    assert.equal(body(await get(href as string)), 'x')
  })
  test('every listed name links to its entry', async () => {
    const html = body(await get(`/ipfs/${site}/sub/deep/`))
    const hrefs = [...html.matchAll(/href="(\/ipfs\/[^"]+)"/g)].map(([, href]) =>
      (href as string).replaceAll('&amp;', '&'),
    )
    assert.ok(hrefs.length >= 5)
    for (const href of hrefs) assert.ok((await get(href)).status < 400, href)
  })
  test('Accept: application/json → JSON, even with index.html', async () => {
    for (const [path, headers] of [
      [`/ipfs/${bare}`, { Accept: 'application/json' }],
      [`/ipfs/${bare}/?format=json`, {}],
      [`/ipfs/${site}/?format=json`, {}],
    ] as const) {
      const answer = await get(path, headers)
      assert.equal(answer.headers['content-type'], 'application/json')
      assert.ok((JSON.parse(body(answer)) as { entries: unknown[] }).entries.length > 0)
    }
    for (let again = 0; again < 2; again++) {
      assert.equal(body(await get(`/ipfs/${site}/app/`, { Accept: 'application/json' })), '<p>the app')
      assert.equal((await get(`/ipfs/${site}/app`, { Accept: 'application/json' })).status, 301)
      await get(`/ipfs/${site}/app/`)
    }
    const both = await get(`/ipfs/${bare}/`, { Accept: 'text/html, application/json;q=0.9' })
    assert.match(String(both.headers['content-type']), /html/)
  })
})

describe('Markdown', () => {
  test('text page for browsers, the file for others', async () => {
    const path = `/ipfs/${site}/sub/read.md`
    const answer = await get(path, asBrowser)
    assert.equal(answer.headers['content-type'], 'text/html; charset=utf-8')
    assert.match(String(answer.headers['content-security-policy']), /^default-src 'none'/)
    assert.match(body(answer), /<pre class="text"># Ü &lt;b&gt;not bold&lt;\/b&gt;<\/pre>/)
    const plain = await get(path)
    assert.deepEqual(
      [body(plain), plain.headers['content-type']],
      ['# Ü <b>not bold</b>', 'text/markdown; charset=utf-8'],
    )
    for (const one of [answer, plain]) assert.match(String(one.headers['vary']), /Accept/)
    assert.notEqual(answer.headers['etag'], plain.headers['etag'])
    assert.equal(body(await get(`${path}?download=true`, asBrowser)), '# Ü <b>not bold</b>')
    // Also behind an answer to another client.
    const again = await get(path, { ...asBrowser, 'If-None-Match': String(answer.headers['etag']) })
    assert.equal(again.status, 304)
  })
})

describe('documents', () => {
  test('page for browsers, bytes for others', async () => {
    const path = `/ipfs/${alone['cbor']}/`
    const answer = await get(path, asBrowser)
    assert.equal(answer.headers['content-type'], 'text/html; charset=utf-8')
    assert.match(String(answer.headers['etag']), new RegExp(`^"DagIndex-[0-9a-f]+_CID-${alone['cbor']}"$`))
    assert.equal(answer.headers['content-disposition'], undefined)
    assert.ok(body(answer).includes(`href="/ipfs/${alone['plain']}"`))
    const other = await get(path)
    assert.equal(other.headers['content-disposition']?.split(';')[0], 'attachment')
    assert.equal(other.headers['vary'], 'Accept')
    assert.equal((await get(path, { Accept: 'application/vnd.ipld.dag-cbor' })).status, 200)
  })
  test('ETags of document and page never match', async () => {
    const path = `/ipfs/${alone['cbor']}`
    const tags = [`"${alone['cbor']}"`, String((await get(path, asBrowser)).headers['etag'])]
    for (const [index, accept] of [{}, asBrowser].entries()) {
      for (const [other, tag] of tags.entries()) {
        const answer = await get(path, { ...accept, 'If-None-Match': tag })
        assert.equal(answer.status, other === index ? 304 : 200)
        assert.equal(answer.headers['etag'], tags[index])
      }
    }
  })
  test('value inside → not served, not reported as absent', async () => {
    const answer = await get(`/ipfs/${alone['cbor']}/hello`, asBrowser)
    assert.equal(answer.status, 501)
    assert.doesNotMatch(body(answer), /proved not to exist/)
    assert.doesNotMatch(String(answer.headers['cache-control']), /max-age/)
  })
})

describe('script policy', () => {
  const cases: [what: string, path: () => string, policy: RegExp | undefined][] = [
    ['a page', () => `/ipfs/${site}/`, /^sandbox/],
    ['an SVG', () => sub('picture.svg'), /^sandbox/],
    ['an image', () => sub('image'), undefined],
    ['a film', () => sub('film.mp4'), undefined],
    ['a PDF', () => sub('paper.pdf'), undefined],
    ['text', () => `/ipfs/${alone['plain']}`, undefined],
    ['JSON', () => sub('data'), undefined],
  ]
  for (const [what, path, policy] of cases) {
    test(`${what} on the shared origin: ${policy ?? 'no policy'}`, async () => {
      for (const answer of [await get(path()), await get(path())]) {
        const said = answer.headers['content-security-policy']
        if (policy) assert.match(String(said), policy)
        else assert.equal(said, undefined)
        assert.doesNotMatch(String(said), /allow-scripts|allow-same-origin/)
      }
    })
    test(`${what} on its own origin: no policy`, async () => {
      const [, , root, ...names] = path().split('/')
      const answer = await get(`/${names.join('/')}`, { Host: `${root}.ipfs.${gatewayHost}` })
      assert.equal(answer.status, 200)
      assert.equal(answer.headers['content-security-policy'], undefined)
      assert.equal(answer.headers['referrer-policy'], undefined)
    })
  }
  test('304 keeps the policy of the 200', async () => {
    const { headers } = await get(`/ipfs/${site}/new.html`)
    const again = await get(`/ipfs/${site}/new.html?x`, { 'If-None-Match': String(headers['etag']) })
    assert.equal(again.status, 304)
    assert.equal(again.headers['content-security-policy'], undefined)
  })
})

describe('_redirects', () => {
  const moves: [path: string, status: number, location: string][] = [
    ['/old', 301, '/new.html'],
    ['/old/', 301, '/new.html'],
    ['/found?a=1', 302, '/new.html?a=1'],
    ['/posts/2026/h%C3%AB%20llo', 308, '/articles/2026/h%C3%AB%20llo'],
    ['/go/a/b', 301, '/to/a/b'],
    ['/go//evil.example/x', 301, '/to/evil.example/x'],
    ['/with/x?kept=2&more=3', 301, '/new.html?fixed=1&kept=2&more=3'],
  ]
  for (const [path, status, location] of moves) {
    test(`${path}: ${status} to ${location}`, async () => {
      const answer = await own(site, path)
      assert.equal(answer.status, status, body(answer))
      assert.equal(answer.headers.location, location)
    })
  }
  test('200 rewrite → other path with its ETag and 304', async () => {
    const answer = await own(site, '/app/some/page', asBrowser)
    assert.equal(answer.status, 200)
    assert.equal(body(answer), '<p>the app')
    const etag = String(answer.headers['etag'])
    assert.equal((await own(site, '/app/some/page', { 'If-None-Match': etag })).status, 304)
    assert.equal(body(await own(site, '/app/real.js')), '1')
  })
  test('rewritten directory → no trailing slash needed', async () => {
    const answer = await own(site, '/docs-of/x')
    assert.equal(answer.status, 200)
    assert.ok(body(answer).includes('<a href="/sub/image">image</a>'))
  })
  for (const [path, status, says] of [
    ['/lost/x', 404, '<p>not here'],
    ['/gone/x', 410, '<p>gone'],
    ['/legal/x', 451, '<p>not allowed'],
  ] as const) {
    test(`${status} with the site's page`, async () => {
      const page = path.replace(/.*\/(\w+)\/x/, '$1')
      for (const headers of [{}, { Range: 'bytes=0-1' }, { 'If-None-Match': '*' }]) {
        const answer = await own(site, path, headers)
        assert.equal(answer.status, status, page)
        assert.equal(body(answer), says)
        assert.equal(answer.headers['content-type'], 'text/html; charset=utf-8')
        assert.equal(answer.headers['cache-control'], 'public, max-age=29030400, immutable')
      }
      const again = await own(site, path)
      assert.equal(again.status, status, 'and is not taken for a 200 later')
    })
  }
  test('target missing → 404 about the requested path', async () => {
    const answer = await own(site, '/nowhere/x')
    assert.equal(answer.status, 404)
    assert.match(body(answer), /nowhere/)
  })
  test('no rule matches → 404', async () => assert.equal((await own(site, '/unheard-of')).status, 404))
  test('existing path → wins over rules', async () => {
    assert.equal(body(await own(broken, '/found.html')), '<p>found')
  })
  test('malformed file → explained', async () => {
    // The stand-in breaks off a CAR of a path that is not there, and would be left alone for a while.
    for (const root of [broken, large]) assert.equal((await get(`/ipfs/${root}?format=raw`)).status, 200)
    const wrong = await own(broken, '/not-found')
    assert.equal(wrong.status, 500)
    assert.match(body(wrong), /could not parse _redirects: line 1/)
    const long = await own(large, '/not-found')
    assert.equal(long.status, 500, body(long))
    assert.match(body(long), /could not parse _redirects: redirects file size cannot exceed/)
  })
  test('malformed file → counted as malformed content, not logged', async () => {
    const counted = async () =>
      /cidgate_failures_total\{kind="internal"\} (\d+)/.exec(await metricsOf(at.gateway))?.[1] ?? '0'
    const before = await counted()
    const answer = await own(broken, '/not-found', { Accept: 'application/json' })
    const problem = JSON.parse(body(answer)) as Record<string, unknown>
    assert.deepEqual(
      [answer.status, problem['type'], problem['title']],
      [500, 'urn:problem-type:cidgate:malformed', 'Malformed'],
    )
    const page = await own(broken, '/not-found', asBrowser)
    assert.match(body(page), /only its author can fix it/)
    assert.equal(await counted(), before)
    assert.deepEqual(
      at.log.filter(({ level }) => level === 'error'),
      [],
    )
  })
  test('impossible target → error of the site', async () => {
    assert.equal((await get(`/ipfs/${misled}?format=raw`)).status, 200) // for the sake of the stand-in, as above
    const leading = await own(misled, '/dots')
    assert.equal(leading.status, 500)
    assert.match(body(leading), /could not parse _redirects: a rule leads to "\/a\/\.\.\/b"/)
    assert.equal(body(await own(misled, '/other')), '<p>found')
  })
  test('shared origin → rules ignored', async () => {
    for (const path of ['/old', '/app/x', '/lost/x']) assert.equal((await get(`/ipfs/${site}${path}`)).status, 404)
    assert.equal((await get(`/ipfs/${broken}/x`)).status, 404)
  })
})

describe('errors', () => {
  test('browser → page, program → JSON', async () => {
    const answer = await get(`/ipfs/${site}/not-there`, asBrowser)
    assert.equal(answer.status, 404)
    assert.match(String(answer.headers['content-type']), /text\/html/)
    assert.match(String(answer.headers['content-security-policy']), /default-src 'none'/)
    assert.match(body(answer), /What you can do/)
    const program = await get(`/ipfs/${site}/not-there`, { Accept: '*/*' })
    assert.equal(program.headers['content-type'], 'application/problem+json')
    const silent = await get(`/ipfs/${site}/not-there`)
    assert.equal(silent.headers['content-type'], 'text/plain; charset=utf-8')
    assert.match(body(silent), /^404 No such path\nno link named "not-there" under /)
    for (const one of [answer, program, silent]) assert.equal(one.headers['vary'], 'Accept')
  })
  test('no upstream available → 502', async () => {
    const { cid } = await addFile(new Map(), noise(100, 1234))
    upstream.fault = { kind: 'refuse' }
    try {
      const answer = await get(`/ipfs/${cid}`, asBrowser)
      assert.ok([502, 504].includes(answer.status), `${answer.status}`)
      assert.equal(answer.headers['cache-control'], 'no-store')
      assert.match(body(answer), /Servers that were asked/)
    } finally {
      upstream.fault = undefined
    }
  })
})
