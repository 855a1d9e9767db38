// The pages that visitors see, in a real browser: the first page, listings, documents, errors and the description of the API.
// Needs `chromium` in PATH.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { addDirectory, distinctFiles, fixtures } from '../support/fixtures.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { startUpstream } from '../support/upstream.ts'
import { assertGood } from './support/axe.ts'
import { busyStatus } from './support/busy-status.ts'
import { type Page, startChromium } from './support/chromium.ts'
import { tempFolder } from './support/processes.ts'

describe('visitor pages', { timeout: 300_000 }, () => {
  const closing: (() => unknown)[] = []
  const paths: Record<string, string> = {}
  let at: TestGateway
  let page: Page
  let admin = ''

  before(async () => {
    const all = await fixtures()
    const names = Object.fromEntries(Array.from({ length: 60 }, (_, index) => [`${index}.txt`, Buffer.from('a')]))
    const large = await addDirectory(all.blocks, names, { sharded: true })
    const [denied, legal, broken, silent, absent] = (await distinctFiles(all.blocks, 5, 3000)).map(({ cid }) =>
      String(cid),
    )
    const upstream = await startUpstream({ blocks: all.blocks })
    closing.push(upstream.close)
    upstream.fault = ({ url }) => {
      if (url.includes(String(broken))) return { kind: 'status', status: 500 }
      if (url.includes(String(silent))) return { kind: 'silent' }
      return url.includes(String(absent)) ? { kind: 'notFound' } : undefined
    }
    const folder = await tempFolder()
    closing.push(folder.remove)
    const list = join(folder.path, 'list.deny')
    await writeFile(list, `/ipfs/${denied}/* reason=abuse\n/ipfs/${legal}/* status=451 reason=court-order\n`)
    at = await startGateway({
      upstreams: [{ name: 'upstream', url: upstream.url }],
      config: {
        ...{ responses: { types: 'web' }, contact: 'abuse@gw.example', denylists: [list] },
        retrieval: { timeout: '1s', backgroundSearch: 0 },
      },
    })
    closing.push(at.close)
    const form = new FormData()
    for (const name of [
      'a.png',
      'b.mp4',
      'c.mp3',
      'd.txt',
      'folder/e.txt',
      'f.md',
      `a-long-name-${'x'.repeat(120)}.bin`,
    ])
      form.append('data', new Blob([name]), name)
    const added = await fetch(`${at.url}/add?wrap=true`, { method: 'POST', body: form })
    const { cids } = (await added.json()) as { cids: string[] }
    const browser = await startChromium()
    closing.push(browser.stop)
    page = await browser.page()
    Object.assign(paths, {
      small: cids.at(-1),
      large: `/ipfs/${large}`,
      document: `/ipfs/${all.dagJson}`,
      denied: `/ipfs/${denied}`,
      legal: `/ipfs/${legal}`,
      broken: `/ipfs/${broken}`,
      silent: `/ipfs/${silent}`,
      absent: `/ipfs/${absent}`,
    })
  })
  after(async () => {
    for (const close of closing.toReversed()) await close()
  })

  const pages: readonly (readonly [name: string, path: () => string | undefined, status: number, says: RegExp])[] = [
    ['the first page', () => '/', 200, /Upload/],
    ['the description of the API', () => '/openapi.json', 200, /The API of this gateway/],
    ['a listing', () => `${paths['small']}/`, 200, /Index of[\s\S]*b\.mp4/],
    ['a sharded listing', () => `${paths['large']}/`, 200, /Index of/],
    ['a document', () => paths['document'], 200, /A dag-json document/],
    ['Markdown', () => `${paths['small']}/f.md`, 200, /f\.md/],
    ['400', () => '/ipfs/nonsense', 400, /not a CID/],
    ['404 of a path', () => `${paths['small']}/nothing`, 404, /proved not to exist[\s\S]*abuse@gw\.example/],
    ['404', () => paths['absent'], 404, /has this content[\s\S]*abuse@gw\.example/],
    ['410', () => paths['denied'], 410, /does not serve[\s\S]*abuse@gw\.example/],
    ['451', () => paths['legal'], 451, /does not serve[\s\S]*abuse@gw\.example/],
    ['502', () => paths['broken'], 502, /If this persists, contact the operator of this gateway. abuse@gw\.example/],
    ['504', () => paths['silent'], 504, /slow to find/],
  ]
  for (const [name, path, status, says] of pages)
    test(`${name}: axe → nothing serious, any size and scheme`, async () => {
      await page.open(`${at.url}${path()}`)
      assert.match(await page.evaluate<string>('document.body.innerText'), says)
      const [{ responseStatus }] = await page.evaluate<[{ responseStatus: number }]>(
        `performance.getEntriesByType('navigation').map(({ responseStatus }) => ({ responseStatus }))`,
      )
      assert.equal(responseStatus, status)
      await assertGood(page, name)
    })

  describe('dashboard of a failing gateway', () => {
    let server: Server
    before(async () => {
      const began = Date.now()
      server = createServer((request, response) => {
        if (request.url === '/status') response.end(JSON.stringify(busyStatus(began)))
        else at.gateway.admin(request, response)
      })
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
      admin = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
    })
    after(() => {
      server.closeAllConnections()
      server.close()
    })

    const open = async (folds: string): Promise<void> => {
      await page.look({ width: 1280, height: 900 })
      await page.open(admin)
      await page.until(`document.querySelector('#figures dd')`)
      await page.evaluate(`for (const one of document.querySelectorAll('main > details')) one.open = ${folds}`)
    }

    test('first screen → faults first, then four figures', async () => {
      await open('false')
      await assertGood(page, 'dashboard, folded')
      assert.match(await page.evaluate<string>('document.body.innerText'), /Upstream liar is quarantined[\s\S]*Next: /)
    })

    test('every section → nothing cut or overlapping', async () => {
      await open('true')
      await assertGood(page, 'dashboard')
    })

    test('phone → short enough to scroll', async () => {
      await page.look({ width: 390, height: 844 })
      await open('false')
      await page.look({ width: 390, height: 844 })
      const screens = await page.evaluate<number>('document.documentElement.scrollHeight / innerHeight')
      assert.ok(screens < 3, `${screens} screens`)
    })
  })

  test('no request to another host', () => {
    assert.deepEqual(
      page.requests.filter((url) => !url.startsWith(`${at.url}/`) && !url.startsWith(admin)),
      [],
    )
  })
})
