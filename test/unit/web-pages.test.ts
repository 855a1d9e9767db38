// The pages of web mode: what stands in them, in which order, and that nothing they show can become markup.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import { CID } from 'multiformats/cid'
import type { DirectoryEntry } from '../../src/content/resolve.ts'
import { problemPage, problemText } from '../../src/http/wire/problem.ts'
import { documentPage } from '../../src/web/document-page.ts'
import { inUnits, listingPage, maxSorted } from '../../src/web/listing.ts'
import { breadcrumbs, cidLink, encodeName, shown, type Whereabouts } from '../../src/web/page.ts'
import { addCbor, type BlockMap } from '../support/fixtures.ts'

const root = CID.parse('bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi')
const file = CID.parse('bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e')
const at: Whereabouts = {
  namespace: 'ipfs',
  root: root.toString(),
  segments: ['ą', 'ę'],
  base: `/ipfs/${root}`,
  gateway: '',
  host: 'localhost',
}
const own: Whereabouts = { ...at, base: '', gateway: '//gateway.example' }
const site: Whereabouts = {
  ...at,
  namespace: 'ipns',
  root: 'site.example',
  base: '',
  gateway: undefined,
  host: 'site.example',
}

const entry = (name: string, more: Partial<DirectoryEntry> = {}): DirectoryEntry => ({
  name,
  cid: file,
  size: 10,
  type: 'file',
  ...more,
})
async function* from(entries: Iterable<DirectoryEntry>) {
  yield* entries
}
const page = async (entries: Iterable<DirectoryEntry>, where = at): Promise<string> =>
  Buffer.concat(await Array.fromAsync(listingPage(where, root, from(entries)))).toString()
const namesIn = (html: string): string[] =>
  [...html.matchAll(/<tr[^>]*><td>(?:<svg.*?<\/svg>)?(?:<a href="[^"]*">)?([^<]*)/g)].map(([, name]) => name as string)

describe('listing page', () => {
  test('links names, CIDs, path and parent, on a shared host', async () => {
    const html = await page([entry('file-źł.txt')])
    assert.ok(html.includes('Index of'))
    assert.ok(
      html.includes(
        `/ipfs/<a href="/ipfs/${root}">${root}</a>/<a href="/ipfs/${root}/%C4%85">ą</a>/<a href="/ipfs/${root}/%C4%85/%C4%99">ę</a>`,
      ),
    )
    assert.ok(html.includes(`<a href="/ipfs/${root}/%C4%85/%C4%99/..">..</a>`))
    assert.ok(html.includes(`<a href="/ipfs/${root}/%C4%85/%C4%99/file-%C5%BA%C5%82.txt">file-źł.txt</a>`))
    assert.ok(
      html.includes(`<a class="ipfs-hash" translate="no" href="/ipfs/${file}?filename=file-%25C5%25BA%25C5%2582.txt">`),
    )
  })
  test('CID to copy, named columns, downloads, kinds', async () => {
    const files = [entry('a', { type: 'directory' }), entry('b.png'), entry('c.mp4'), entry('d.mp3'), entry('e.txt')]
    const html = await page(files)
    assert.equal(html.split(`<code class="whole" translate="no">${root}</code>`).length, 2)
    for (const head of ['Name', 'CID', 'Size']) assert.ok(html.includes(`<th scope="col">${head}</th>`), head)
    assert.match(html, />Download as \.tar<.*>Download as \.car<.*>View as JSON</)
    const kinds = [...html.matchAll(/<use href="#(\w+)"\/><\/svg><a href="[^"]*">([^<.]+)/g)]
    for (const [, kind] of kinds) assert.ok(html.includes(`<symbol id="${kind}"`), kind)
    assert.deepEqual(
      kinds.map(([, kind, name]) => [name, kind]),
      [
        ['a', 'folder'],
        ['b', 'image'],
        ['c', 'video'],
        ['d', 'audio'],
        ['e', 'text'],
      ],
    )
  })
  test('own origin → links to the shared gateway', async () => {
    const html = await page([entry('hello')], own)
    assert.ok(html.includes('<a href="/%C4%85/%C4%99/hello">hello</a>'))
    assert.ok(html.includes('<a href="/%C4%85/%C4%99/..">..</a>'))
    assert.ok(html.includes(`<a href="//gateway.example/ipfs/${root}/%C4%85">ą</a>`))
    assert.ok(html.includes(`href="//gateway.example/ipfs/${file}?filename=hello"`))
  })
  test('no shared gateway → stays on its host', () => {
    const crumbs = '/ipns/<a href="//site.example/">site.example</a>/<a href="//site.example/%C4%85">ą</a>/'
    assert.ok(breadcrumbs(site).startsWith(crumbs))
    assert.equal(
      cidLink(site, 'bafy', 'x'),
      'href="https://cid.ipfs.tech/#bafy" target="_blank" rel="noreferrer noopener"',
    )
  })
  test('directories first, natural order', async () => {
    const directory = { type: 'directory' } as const
    const html = await page(
      ['b10', 'b9', 'Z', 'a'].map((name) => entry(name)).concat(entry('sub', directory), entry('a2', directory)),
    )
    assert.deepEqual(namesIn(html).slice(1), ['a2', 'sub', 'a', 'b9', 'b10', 'Z'])
  })
  test('above the limit → streamed in stored order', async () => {
    let made = 0
    const many = function* () {
      for (; made < maxSorted * 3; made++) yield entry(`n${maxSorted * 3 - made}`)
    }
    const pieces = listingPage(at, root, from(many()))
    let html = (await pieces.next()).value?.toString() ?? ''
    assert.ok(made <= maxSorted + 2, `${made} entries were read for the first piece`)
    for await (const piece of pieces) html += piece
    const names = namesIn(html).slice(1)
    assert.deepEqual(
      names,
      Array.from({ length: maxSorted * 3 }, (_, index) => `n${maxSorted * 3 - index}`),
    )
    assert.ok(html.endsWith('</html>\n'))
  })
  test('long names → memory limit holds', async () => {
    let made = 0
    const long = function* () {
      for (; made < 1000; made++) yield entry(`${made}${'x'.repeat(1_000_000)}`)
    }
    await listingPage(at, root, from(long())).next()
    assert.ok(made < 10)
  })
  test('empty directory → page', async () => {
    assert.match(await page([]), /0 entries.*<\/html>\n$/s)
  })
  test('failure before the first entry → no partial page', async () => {
    const failing = async function* (): AsyncGenerator<DirectoryEntry> {
      throw new Error('not there')
    }
    await assert.rejects(listingPage(at, root, failing()).next(), /not there/)
  })
  test('human-readable sizes', () => {
    assert.deepEqual([0, 1, 1023, 1024, 1536, 1024 ** 2 - 1, 5 * 1024 ** 3, 1024 ** 6].map(inUnits), [
      '0 B',
      '1 B',
      '1023 B',
      '1.0 KiB',
      '1.5 KiB',
      '1024 KiB',
      '5.0 GiB',
      '1024 PiB',
    ])
  })
})

describe('hostile names', () => {
  const hostile = [
    '<script>alert(1)</script>',
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    'javascript:alert(1)',
    '&lt;b&gt;',
    '../../secret',
    '..',
    '.',
    '',
    'a\nb',
    '%2e%2e',
    '?format=raw#x',
    'a\u202egpj.exe',
    '\ud800',
    'x'.repeat(5000),
  ]
  test('listing → escaped, links stay below the directory', async () => {
    const html = await page(hostile.map((name) => entry(name)))
    assert.doesNotMatch(html, /<(script|img)/i)
    assert.doesNotMatch(html, /<[^>]*\son\w+=/i)
    for (const [, href] of html.matchAll(/href="([^"]*)"/g)) {
      const url = new URL((href as string).replaceAll('&amp;', '&'), `http://host/ipfs/${root}/%C4%85/%C4%99/`)
      assert.equal(url.host, 'host', href)
      assert.ok(url.pathname.startsWith('/ipfs/'), href)
    }
    assert.equal([...html.matchAll(/href="[^"]*\/\.*"/g)].length, 1, 'only the way up ends in dots or a slash')
    assert.doesNotMatch(html, /href="[^"?]*secret"/)
  })
  test('round-trip through a URL', () => {
    for (const name of hostile.filter((one) => one.isWellFormed() && !/^\.{0,2}$|\//.test(one))) {
      const { pathname } = new URL(`http://host/${encodeName(name)}`)
      assert.equal(decodeURIComponent(pathname.slice(1)), name)
    }
  })
  test('bidirectional controls → marked', () => assert.equal(shown('a\u202egpj.exe'), 'a\ufffdgpj.exe'))
  test('in a path → escaped too', () => {
    assert.doesNotMatch(breadcrumbs({ ...at, root: '<b>', segments: ['"><i>'] }), /<[bi]>/)
  })
})

describe('document page', () => {
  const blocks: BlockMap = new Map()
  const entity = (value: unknown) => {
    const cid = addCbor(blocks, value)
    return { cid, kind: 'data', block: dagCbor.encode(value), size: undefined } as const
  }
  test('shows content with links', async () => {
    const html = String(
      await documentPage(at, entity({ '<k>': '<v>', n: [1, null, true], f: file, b: new Uint8Array([1, 2]) })),
    )
    assert.ok(
      html.includes('<span class="k">&quot;&lt;k&gt;&quot;</span>: <span class="s">&quot;&lt;v&gt;&quot;</span>'),
    )
    assert.ok(html.includes(`<a class="ipfs-hash" href="/ipfs/${file}">${file}</a>`))
    assert.ok(html.includes('bytes(AQI)'))
    assert.match(html.replaceAll(/<[^>]*>/g, ''), /: \[\n {4}1,\n {4}null,\n {4}true\n {2}\]/)
    assert.ok(html.endsWith('</html>\n'))
  })
  test('dag-json → escapes and bytes decoded', async () => {
    const block = Buffer.from(`{"a":"\\u00e9\\n","b":{"/":{"bytes":"AQI="}},"l":[{"/":"${file}"},{},[]],"n":-1.50}`)
    const cid = CID.createV1(dagJson.code, root.multihash)
    const html = String(await documentPage(at, { cid, kind: 'data', block, size: undefined }))
    const body = html.slice(html.indexOf('<pre'), html.indexOf('</pre>'))
    const lines = body
      .replaceAll(/<[^>]*>/g, '')
      .replaceAll('&quot;', '"')
      .split('\n')
    const list = ['  "l": [', `    ${file},`, '    {},', '    []', '  ],']
    assert.deepEqual(lines, ['{', '  "a": "é\\n",', '  "b": bytes(AQI),', ...list, '  "n": -1.5', '}'])
  })
  test('many pieces → every character', async () => {
    const words = Array.from({ length: 6000 }, (_, index) => `é𝄞${index}`)
    const html = String(await documentPage(at, entity(words)))
    const shown = html.slice(html.indexOf('<pre translate="no">') + 20, html.indexOf('</pre>'))
    assert.deepEqual(JSON.parse(shown.replaceAll(/<[^>]*>/g, '').replaceAll('&quot;', '"')), words)
  })
  test('large or deep → shown in part', async () => {
    const wide = await documentPage(at, entity(Array.from({ length: 200_000 }, (_, index) => index)))
    assert.ok(wide.byteLength < 600_000)
    assert.match(wide.toString(), /only the beginning is shown/)
    let deep: unknown = 1
    for (let index = 0; index < 500; index++) deep = [deep]
    const cut = String(await documentPage(at, entity([deep, 2])))
    assert.match(cut.replaceAll(/<\/?span[^>]*>/g, ''), /…\n[ \]\n]+,\n {2}2\n\]<\/pre>/)
  })
})

describe('problem page', () => {
  test('failure → detail, attempts and next step, all escaped', () => {
    const attempts = [{ upstream: '<b>one</b>', outcome: 'timeout', ms: 12.4 }] as never
    const html = problemPage({
      title: 'Not found',
      status: 404,
      kind: 'not-found',
      detail: 'nobody has <script>',
      attempts,
    })
    assert.match(html, /<h1>404 Not found<\/h1>\n<p>No server that was asked has this content\.<\/p>/)
    assert.match(html, /Nobody has &lt;script&gt;\./)
    assert.match(html, /&lt;b&gt;one&lt;\/b&gt;<\/td><td>Did not answer in time<\/td><td>12 ms/)
    assert.match(html, /What you can do/)
    assert.doesNotMatch(html, /<script|<b>/)
  })
  const problem = { title: 'Title', detail: 'what happened', requestId: 'id<1' }
  test('retry time, with a link', () => {
    for (const [retryAfter, words] of [
      [1, 'a second'],
      [30, '30 seconds'],
      [600, '10 minutes'],
      [86_400, '24 hours'],
    ] as const) {
      const html = problemPage({ ...problem, status: 503, kind: 'overloaded', retryAfter })
      assert.ok(html.includes(`<p>Try again in ${words}. <a href="">Try again</a></p>`), words)
    }
    const never = problemPage({ ...problem, status: 404, kind: 'path-not-found', retryAfter: 5 })
    assert.doesNotMatch(never, /try again/i)
  })
  test('request id, and the operator where useful', () => {
    const page = (status: number, kind: 'denied' | 'malformed' | 'not-found') =>
      problemPage({ ...problem, status, kind, contact: 'abuse@gw.example' })
    assert.ok(page(410, 'denied').includes('Request <code>id&lt;1</code>'))
    assert.ok(page(451, 'denied').includes('<a href="mailto:abuse@gw.example">abuse@gw.example</a>'))
    const link = '<a href="mailto:abuse@gw.example">abuse@gw.example</a>'
    for (const other of [page(404, 'not-found'), page(400, 'malformed')])
      assert.equal(other.split(`<p class="dim">Who answers for this gateway: ${link}</p>`).length, 2)
    assert.doesNotMatch(page(451, 'denied'), /Who answers/)
    const text = problemText({ ...problem, status: 404, kind: 'not-found', contact: 'abuse@gw.example' })
    assert.match(text, /^Who answers for this gateway: abuse@gw\.example$/m)
    const hostile = problemPage({ ...problem, status: 410, kind: 'denied', contact: 'https://a.example/"><b>' })
    assert.doesNotMatch(hostile, /<b>/)
  })
})
