// What a server of its own answers besides content: the first page for people and programs, its icon, and robots.txt.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { Script } from 'node:vm'
import { parseConfig } from '../../src/gateway.ts'
import { fetchAll, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'

const cid = 'bafkqaaa'
const people = { accept: 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8' }

let open: TestGateway
let closed: TestGateway
let elsewhere: TestGateway
before(async () => {
  const contact = 'abuse@gw.example'
  open = await startGateway({ config: { contact, hosts: { 'gw.example': { subdomains: true } } } })
  closed = await startGateway({ config: { root: 'none', upload: { auth: { tokens: ['0123456789abcdef'] } } } })
  elsewhere = await startGateway({ config: { root: `/ipfs/${cid}`, pinning: { providers: [] } } })
})
after(() => Promise.all([open, closed, elsewhere].map((one) => one.close())))

const hashOf = (text: string): string => `'sha256-${createHash('sha256').update(text).digest('base64')}'`

describe('front page', () => {
  test('JSON for programs, a page for people', async () => {
    const described = await fetchAll(`${open.url}/`)
    assert.equal(described.headers['content-type'], 'application/json')
    assert.equal(described.headers.vary, 'Accept')
    const { name, content, uploads, contact } = JSON.parse(described.body.toString())
    assert.deepEqual(
      { name, content, uploads, contact },
      {
        name: 'cidgate',
        content: ['/ipfs/{cid}', '/ipns/{name}'],
        uploads: { path: '/add', needsToken: false },
        contact: 'mailto:abuse@gw.example',
      },
    )
    const page = await fetchAll(`${open.url}/`, people)
    assert.deepEqual([page.status, page.headers['content-type']], [200, 'text/html; charset=utf-8'])
    assert.match(page.body.toString(), /<a href="mailto:abuse@gw\.example">abuse@gw\.example<\/a>/)
    const json = await fetchAll(`${open.url}/`, { accept: 'text/html;q=0.5, application/json' })
    assert.equal(json.headers['content-type'], 'application/json')
  })

  test('name and logo → in page, JSON and icon', async () => {
    const folder = await tempFolder()
    const logo = join(folder, 'logo.svg')
    const svg = '<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>'
    await writeFile(logo, svg)
    const own = await startGateway({ config: { name: 'Gateway of <Example>', logo } })
    try {
      const html = (await fetchAll(`${own.url}/`, people)).body.toString()
      assert.match(
        html,
        /<title>Gateway of &lt;Example&gt;<\/title>[\s\S]*<h1[^>]*><img src="\/favicon\.svg"[^>]*>Gateway of &lt;Example&gt;<\/h1>/,
      )
      const icon = await fetchAll(`${own.url}/favicon.svg`)
      assert.deepEqual([icon.body.toString(), icon.headers['content-type']], [svg, 'image/svg+xml'])
      assert.match(String(icon.headers['content-security-policy']), /^default-src 'none'.*sandbox$/)
      assert.equal(
        (JSON.parse((await fetchAll(`${own.url}/`)).body.toString()) as { title: string }).title,
        'Gateway of <Example>',
      )
    } finally {
      await own.close()
      await rm(folder, { recursive: true })
    }
    for (const wrong of [join(folder, 'gone.svg'), 'README.md'])
      assert.throws(() => parseConfig({ logo: wrong }), /logo: .*expected an existing \.svg/)
  })

  test('policy: own scripts by hash, nothing external', async () => {
    const { headers, body } = await fetchAll(`${open.url}/`, people)
    const html = body.toString()
    const policy = String(headers['content-security-policy'])
    assert.doesNotMatch(policy, /unsafe|https?:/)
    for (const [, , text = ''] of html.matchAll(/<(style|script)>(.*?)<\/\1>/gs))
      assert.ok(policy.includes(hashOf(text)), text.slice(0, 40))
    assert.doesNotMatch(html, /<(script|style)\s|\son\w+="|\sstyle="|src="(?!\/favicon\.svg")/)
    for (const [, href = ''] of html.matchAll(/<link[^>]*href="([^"]*)"/g)) assert.ok(href.startsWith('/'), href)
    // The field leads to another origin here, and a browser holds the policy against the redirect, too.
    assert.match(policy, /form-action 'self' \*\.ipfs\.gw\.example:\* \*\.ipns\.gw\.example:\*;/)
    const [script] = [...html.matchAll(/<script>(.*?)<\/script>/gs)].map(([, text = '']) => text)
    assert.doesNotThrow(() => new Script(script ?? ''))
  })

  test('upload form only if uploads are open', async () => {
    const page = async ({ url }: TestGateway) => (await fetchAll(`${url}/`, people)).body.toString()
    assert.match(await page(open), /<form id="upload" action="\/add" method="post" enctype="multipart\/form-data">/)
    const guarded = await startGateway({ config: { upload: { auth: { tokens: ['0123456789abcdef'] } } } })
    const html = await page(guarded)
    const { uploads } = JSON.parse((await fetchAll(`${guarded.url}/`)).body.toString())
    await guarded.close()
    assert.deepEqual(uploads, { path: '/add', needsToken: true })
    assert.match(html, /Uploads need a token/)
    assert.doesNotMatch(html, /<script|id="upload"/)
  })

  test('upload form only if this client could upload', async () => {
    const at = await startGateway({ config: { trustedProxies: ['127.0.0.1'] } })
    const all = await startGateway({ config: { trustedProxies: ['127.0.0.1'], upload: { auth: 'open' } } })
    const offers = async ({ url }: TestGateway, headers: Record<string, string>) => {
      const page = await fetchAll(`${url}/`, { ...people, ...headers })
      const { uploads } = JSON.parse((await fetchAll(`${url}/`, headers)).body.toString())
      const isKept = /^public/.test(String(page.headers['cache-control']))
      return [/id="upload"/.test(page.body.toString()), uploads !== undefined, isKept ? 'for all' : 'for one']
    }
    const elsewhere = { 'x-forwarded-for': '203.0.113.9', 'x-forwarded-host': 'gw.example' }
    try {
      assert.deepEqual(await offers(at, {}), [true, true, 'for one'])
      assert.deepEqual(await offers(at, elsewhere), [false, false, 'for one'])
      // A page of that name is foreign to the machine; a program sends no origin.
      assert.deepEqual(await offers(at, { host: 'gw.example' }), [false, true, 'for one'])
      assert.deepEqual(await offers(all, elsewhere), [true, true, 'for all'])
    } finally {
      await Promise.all([at, all].map((one) => one.close()))
    }
  })

  test('`root: none` or a redirect → no page', async () => {
    assert.equal((await fetchAll(`${closed.url}/`)).status, 404)
    const moved = await fetchAll(`${elsewhere.url}/`)
    assert.deepEqual([moved.status, moved.headers.location], [302, `/ipfs/${cid}`])
  })

  test("not on a site's own origin", async () => {
    const { status, headers } = await fetchAll(`${open.url}/`, { ...people, host: `${cid}.ipfs.gw.example` })
    assert.deepEqual([status, headers['x-ipfs-path']], [200, `/ipfs/${cid}/`])
  })

  test('read methods only', async () => {
    const head = await fetch(`${open.url}/`, { method: 'HEAD', headers: people })
    assert.deepEqual([head.status, await head.text()], [200, ''])
    assert.ok(Number(head.headers.get('content-length')) > 1000)
    const posted = await fetch(`${open.url}/`, { method: 'POST', body: 'x' })
    assert.deepEqual([posted.status, posted.headers.get('allow')], [405, 'GET, HEAD, OPTIONS'])
    const asked = await fetch(`${open.url}/`, { method: 'OPTIONS' })
    assert.deepEqual([asked.status, asked.headers.get('access-control-allow-origin')], [204, '*'])
  })

  test('has an icon; robots.txt excludes content', async () => {
    for (const path of ['/favicon.ico', '/favicon.svg'])
      assert.equal((await fetchAll(open.url + path)).headers['content-type'], 'image/svg+xml')
    assert.match((await fetchAll(`${closed.url}/robots.txt`)).body.toString(), /^User-agent: \*\nDisallow: \/ipfs\/\n/)
  })

  test('redirects to a website → robots.txt allows everything', async () => {
    const { status, body } = await fetchAll(`${elsewhere.url}/robots.txt`)
    assert.deepEqual([status, body.toString()], [200, 'User-agent: *\nDisallow:\n'])
  })
})

describe('search field of the front page', () => {
  const key = 'k51qzi5uqu5dhjvgwnqkvrhaslwhpcgj8lnzs6l4wcxlpnn8hlrp4wx4y8nk7e'
  for (const [typed, location] of [
    [cid, `/ipfs/${cid}`],
    [` ${cid}/a b?x=1 `, `/ipfs/${cid}/a%20b?x=1`],
    [`ipfs://${cid}/a`, `/ipfs/${cid}/a`],
    [`IPFS://${cid}`, `/ipfs/${cid}`],
    [`/ipfs/${cid}/a`, `/ipfs/${cid}/a`],
    [`https://ipfs.io/ipfs/${cid}/ü`, `/ipfs/${cid}/%C3%BC`],
    [`https://${cid}.ipfs.dweb.link/a`, `/ipfs/${cid}/a`],
    ['docs.ipfs.tech', '/ipns/docs.ipfs.tech'],
    [key, `/ipns/${key}`],
    [
      '12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK',
      '/ipns/12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK',
    ],
    ['https://evil.example/', undefined],
    ['//evil.example', undefined],
    ['nonsense', undefined],
  ] as const) {
    test(`${JSON.stringify(typed)} → ${location ?? 'no redirect'}`, async () => {
      const { status, headers } = await fetchAll(`${open.url}/ipfs/?uri=${encodeURIComponent(typed)}`)
      if (location !== undefined) assert.deepEqual([status, headers.location], [301, location])
      else assert.deepEqual([status, headers.location], [400, undefined])
    })
  }
})
