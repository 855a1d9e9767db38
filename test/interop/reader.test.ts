// docs/deploy.md, "A reader beside an instance", as it is written: a gateway, a reader beside it, and nginx in front of both. Only
// addresses, folders and the secret are put in.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { parse } from 'yaml'
import { multipart, post } from '../support/adding.ts'
import { distinctFiles, type FileFixture, fixtures, noise } from '../support/fixtures.ts'
import { fetchAll } from '../support/gateway.ts'
import { type Said, type Served, startServed } from '../support/served.ts'
import { startUpstream } from '../support/upstream.ts'
import { freePort, run, tempFolder } from './support/processes.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const execute = promisify(execFile)
const closing: (() => unknown)[] = []
let page: string
let first: Served
let reader: Served
let files: FileFixture[]
let front: string

const block = (text: string, language: string): string =>
  new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\`$`, 'm').exec(text)?.[1] ?? assert.fail(`no ${language}`)

/** As often as the page says it. */
function replaced(text: string, from: string, to: string, times: number): string {
  assert.equal(text.split(from).length, times + 1, `the page says ${from} ${times} times`)
  return text.replaceAll(from, to)
}

async function startFront(socket: string): Promise<string> {
  const folder = await tempFolder()
  closing.push(folder.remove)
  const port = await freePort()
  const behind = block(await readFile(join(root, 'docs/behind-nginx.md'), 'utf8'), 'nginx')
  const headers = /listen 80;\n([\s\S]*?)\n {4}location/.exec(behind)?.[1] ?? ''
  assert.match(headers, /proxy_set_header X-Forwarded-For/)
  let text = replaced(block(page, 'nginx'), 'unix:/run/cidgate/reader.sock', `unix:${socket}`, 1)
  text = replaced(text, 'server 127.0.0.1:8080', `server ${new URL(first.url).host}`, 2)
  text = replaced(text, 'server {\n', `server {\n listen 127.0.0.1:${port};\n${headers}\n`, 1)
  const kinds = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
  await mkdir(join(folder.path, 'logs'))
  await writeFile(
    join(folder.path, 'nginx.conf'),
    `${process.getuid?.() === 0 ? 'user root;' : ''}
daemon off; worker_processes 1; pid ${join(folder.path, 'pid')}; error_log stderr crit;
events { worker_connections 256; }
http { access_log off; ${kinds.map((kind) => `${kind}_temp_path ${join(folder.path, kind)};`).join(' ')}
${text}}`,
  )
  const url = `http://127.0.0.1:${port}`
  const isReady = () =>
    fetch(url).then(
      () => true,
      () => false,
    )
  const args = ['-p', folder.path, '-c', join(folder.path, 'nginx.conf')]
  closing.push((await run({ command: 'nginx', args, isReady })).stop)
  return url
}

before(async () => {
  page = (await readFile(join(root, 'docs/deploy.md'), 'utf8')).split('\n## A reader beside an instance\n')[1] ?? ''
  const { blocks } = await fixtures()
  files = await distinctFiles(blocks, 40, 3000)
  const upstream = await startUpstream({ blocks })
  closing.push(upstream.close)
  const folder = await tempFolder()
  closing.push(folder.remove)
  const pinning = { providers: [{ name: 'local', use: 'embedded' }] }
  const upstreams = [{ name: 'upstream', url: upstream.url }]
  first = await startServed({ trustedProxies: ['127.0.0.1'], pinning, retrieval: { upstreams } })
  closing.push(() => first.close())
  const socket = join(folder.path, 'reader.sock')
  const shown = Object.entries({
    'unix:/run/cidgate/reader.sock': `unix:${socket}`,
    '127.0.0.1:8083': '127.0.0.1:0',
    '/var/lib/cidgate-reader': join(folder.path, 'data'),
    'http://127.0.0.1:8080': first.url,
    '${UPLOAD_TOKEN}': 'a-token-of-32-characters-or-more!',
  }).reduce((text, [what, instead]) => replaced(text, what, instead, 1), block(page, 'yaml'))
  reader = await startServed(parse(shown) as Said)
  closing.push(() => reader.close())
  front = await startFront(socket)
})
after(async () => {
  for (const close of closing.toReversed()) await close()
})

const answered = async (one: Served): Promise<number> => {
  let count = 0
  for (const [name, value] of await one.counters())
    if (/^cidgate_http_requests_total\{route="ipfs",method="GET",status="200"/.test(name)) count += value
  return count
}

async function readAll(): Promise<void> {
  for (const { cid, bytes } of files) {
    const { status, body } = await fetchAll(`${front}/ipfs/${cid}`)
    assert.deepEqual([status, body.equals(bytes)], [200, true])
  }
}

test('each of both answers its part of the CIDs, and the reader asks the first one alone', async () => {
  await readAll()
  const before = [await answered(first), await answered(reader)]
  assert.ok(Number(before[1]) > 0 && Number(before[1]) < files.length, `${before[1]} of ${files.length} by the reader`)
  await readAll()
  const [again, ofReader] = [await answered(first), await answered(reader)]
  assert.equal(ofReader, 2 * Number(before[1]), 'the same CIDs as before')
  assert.equal(again - Number(before[0]) + ofReader - Number(before[1]), files.length, 'the reader has them now')
})

test('an upload comes to the first one, and is read by way of either', async () => {
  for (let index = 0; index < 10; index++) {
    const bytes = noise(2000, 5000 + index)
    const { status, body, json } = await post(`${front}/add`, multipart([{ fileName: 'a', body: bytes }]))
    assert.equal(status, 200, body)
    const read = await fetchAll(`${front}${(json['cids'] as string[])[0]}`)
    assert.deepEqual([read.status, read.body.equals(bytes)], [200, true])
  }
})

test('a takedown, as the page says it, is one at both', async () => {
  const [, command = ''] = /`cidgate (deny CID --admin \S+)`/.exec(page) ?? []
  const admins = [first, reader].map(({ serving }) => `http://${serving.admin}`).join(',')
  const all = replaced(command, 'http://127.0.0.1:8081,http://127.0.0.1:8083', admins, 1)
  const denied = files.slice(0, 3)
  for (const { cid } of denied) {
    const args = all.replace('CID', String(cid)).split(' ')
    await execute(process.execPath, [join(root, 'bin/cidgate.mjs'), ...args])
    assert.equal((await fetchAll(`${front}/ipfs/${cid}`)).status, 410)
  }
  files = files.slice(denied.length)
})

test('without the reader, the first one answers everything', async () => {
  await reader.close()
  await readAll()
})
