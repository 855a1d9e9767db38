// What a browser makes of the gateway: a site on an origin of its own runs and keeps its storage to itself; a page on the
// origin that all content shares runs nothing. Needs `chromium` in PATH.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { require, tempFolder } from './support/processes.ts'

// Each page tries to leave a secret and to read what is there, says so, and goes on to the page it was told.
const page = (name: string) => `<!doctype html><title>${name}</title><p id=said>${name} ran nothing</p>
<script>
let found
try { found = localStorage.getItem('secret') ?? 'nothing' ; localStorage.setItem('secret', 'of ${name}') }
catch (error) { found = error.name }
document.getElementById('said').textContent = '${name} found ' + found
const next = new URLSearchParams(location.search).get('next')
if (next) location.replace(next)
</script>`

/** Uploads and reads as a page does whose libraries add headers to each request. */
const program = (gateway: string) => `<!doctype html><p id=said>nothing yet</p>
<script type=module>
const headers = { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'sentry-trace': '1', baggage: 'a=b',
  pragma: 'no-cache', 'x-api-key': 'k', 'X-Not-Thought-Of-Yet': '1' }
const say = (text) => { document.getElementById('said').textContent = text }
try {
  const body = new FormData()
  body.set('data', new Blob(['{"from":"a page"}']))
  const { cids } = await (await fetch('${gateway}/add', { method: 'POST', body, headers })).json()
  const answer = await fetch('${gateway}' + cids[0], { headers: { ...headers, range: 'bytes=0-', 'cache-control': 'no-cache' } })
  say(answer.status + ' ' + (await answer.json()).from)
} catch (error) { say(String(error)) }
</script>`

let at: TestGateway
let port: string
const cids: Record<string, string> = {}

before(async () => {
  require('chromium')
  at = await startGateway({
    config: {
      responses: { types: 'web' },
      hosts: { localhost: { subdomains: true } },
      pinning: { providers: [{ name: 'local', use: 'embedded' }] },
    },
  })
  port = new URL(at.url).port
  for (const name of ['one', 'two']) {
    const form = new FormData()
    form.set('data', new Blob([page(name)]), `${name}.html`)
    const answer = await fetch(`${at.url}/add`, { method: 'POST', body: form })
    assert.equal(answer.status, 200)
    const { cids: added } = (await answer.json()) as { cids: string[] }
    cids[name] = (added[0] as string).replace('/ipfs/', '')
  }
})
after(() => at.close())

/** The page as it is when its scripts, and those of where it led, are done. */
async function dom(url: string): Promise<string> {
  const profile = await tempFolder()
  const flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--virtual-time-budget=5000']
  try {
    return await new Promise((resolve, reject) => {
      const command = [...flags, `--user-data-dir=${profile.path}`, '--dump-dom', url]
      execFile('chromium', command, { timeout: 60_000 }, (error, stdout) => (error ? reject(error) : resolve(stdout)))
    })
  } finally {
    await profile.remove()
  }
}

const said = async (url: string): Promise<string> => /<p id="?said"?>([^<]*)/.exec(await dom(url))?.[1] ?? 'no page'

describe('in a browser', () => {
  const site = (name: string) => `http://${cids[name]}.ipfs.localhost:${port}/`
  const shared = (name: string) => `http://127.0.0.1:${port}/ipfs/${cids[name]}?filename=${name}.html`

  test('a page under one origin with another finds what that one left: these pages would tell', async () => {
    const server = createServer((request, response) => {
      response.setHeader('Content-Type', 'text/html')
      response.end(page(request.url?.startsWith('/one') ? 'one' : 'two'))
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    try {
      assert.equal(await said(`${origin}/one?next=${encodeURIComponent(`${origin}/two`)}`), 'two found of one')
    } finally {
      server.closeAllConnections()
      server.close()
    }
  })

  test('a page of another origin uploads and reads (CORS), with the headers that libraries add', async () => {
    const server = createServer((_request, response) => {
      response.setHeader('Content-Type', 'text/html')
      response.end(program(at.url))
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    try {
      assert.equal(await said(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`), '206 a page')
    } finally {
      server.closeAllConnections()
      server.close()
    }
  })

  test('a site on an origin of its own runs', async () => assert.equal(await said(site('one')), 'one found nothing'))

  test('its storage is its own', async () =>
    assert.equal(await said(`${site('one')}?next=${encodeURIComponent(site('two'))}`), 'two found nothing'))

  test('a page on the shared origin is shown, and runs nothing', async () => {
    assert.equal(await said(shared('one')), 'one ran nothing')
    const throughSite = `${site('one')}?next=${encodeURIComponent(shared('two'))}`
    assert.equal(await said(throughSite), 'two ran nothing')
  })

  test('a path under a gateway with subdomains leads to the origin of its own', async () => {
    assert.equal(await said(`http://localhost:${port}/ipfs/${cids['one']}`), 'one found nothing')
  })
})
