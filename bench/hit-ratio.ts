// `node bench/hit-ratio.ts`: the share of readers' requests that a cache serves, alone and beside a
// crawler that makes half of all requests. Readers follow Zipf 0.9, and the cache holds a twentieth
// of their files. A hit is a request that the origin did not see. Compared with plain LRU and, if
// installed, nginx and Varnish of the same size.
import { Agent, createServer, get } from 'node:http'
import type { AddressInfo } from 'node:net'
import { LRUCache } from 'lru-cache'
import { made } from './work/content.ts'
import { isInstalled, type Server, startCidgate, startNginxCache, startVarnish } from './work/servers.ts'
import { numbers, zipf } from './work/zipf.ts'

const requests = Number(process.env['BENCH_REQUESTS'] ?? 40_000)
const files = 4000
const kept = files / 20
// nginx stores a file in blocks of 4 KiB, with a head of its own.
const bytes = 15 * 1024
const roomKib = kept * 16
const connections = 16
// Earlier requests fill the cache.
const warm = requests / 4
const maxDrop = 2

const skew = 0.9

const read = (await made({ count: files, bytes, seed: 1 })).map((file) => ({ ...file, path: `/ipfs/${file.cid}` }))
const content = new Map(read.map(({ cid, bytes }) => [cid, bytes]))
let missed = new Set<string>()

const origin = createServer(({ url = '' }, response) => {
  const cid = /[a-z0-9]{50,}/.exec(url)?.[0] ?? ''
  const body = content.get(cid)
  missed.add(cid)
  if (!body) return void response.writeHead(404, { 'Content-Length': 0 }).end()
  const type = 'application/vnd.ipld.raw'
  const headers = { 'Content-Type': type, 'Content-Length': body.byteLength, 'Cache-Control': 'max-age=31536000' }
  response.writeHead(200, headers).end(body)
})
await new Promise<void>((resolve) => origin.listen(0, '127.0.0.1', resolve))
const originUrl = `http://127.0.0.1:${(origin.address() as AddressInfo).port}`

/** Sends each request, and returns the share of the readers' that were hits. */
async function share(ask: (path: string, cid: string) => Promise<boolean>, isCrawled: boolean): Promise<number> {
  const random = numbers(2026)
  const next = zipf(files, skew, random)
  let [at, seed, asked, hits] = [0, files + 1, 0, 0]
  const work = async () => {
    while (at < requests) {
      if (isCrawled) {
        const [one] = await made({ count: 1, bytes, seed: seed++ })
        if (!one) throw new Error('nothing was made')
        content.set(one.cid, one.bytes)
        await ask(`/ipfs/${one.cid}`, one.cid)
        content.delete(one.cid)
      }
      const isCounted = at++ >= warm
      const { path, cid } = read[next()] as (typeof read)[number]
      const isHit = await ask(path, cid)
      if (!isCounted) continue
      asked++
      if (isHit) hits++
    }
  }
  await Promise.all(Array.from({ length: connections }, work))
  return hits / asked
}

async function shareOf(start: () => Promise<Server>, isCrawled: boolean): Promise<number> {
  const server = await start()
  const agent = new Agent({ keepAlive: true, maxSockets: connections })
  const readAll = (url: string) =>
    new Promise<void>((resolve, reject) => {
      get(url, { agent }, (answer) => {
        if (answer.statusCode !== 200) reject(new Error(`${url}: ${answer.statusCode}`))
        answer.resume().once('end', resolve).once('error', reject)
      }).once('error', reject)
    })
  try {
    return await share(async (path, cid) => {
      missed.delete(cid)
      await readAll(server.url + path)
      return !missed.has(cid)
    }, isCrawled)
  } finally {
    agent.destroy()
    await server.stop()
    missed = new Set()
  }
}

async function shareOfLru(isCrawled: boolean): Promise<number> {
  const cache = new LRUCache<string, true>({ max: kept })
  return share(async (_path, cid) => {
    const isHit = cache.get(cid) === true
    cache.set(cid, true)
    return isHit
  }, isCrawled)
}

const cidgate = (cache: object) => () =>
  startCidgate({ retrieval: { probeEvery: 0, upstreams: [{ name: 'origin', url: originUrl }] }, cache })
const asUpstream = { url: originUrl }
const caches: [string, (isCrawled: boolean) => Promise<number>][] = [
  [
    'cidgate, memory tier',
    (is) => shareOf(cidgate({ responses: { maxBytes: 0 }, tiers: [{ use: 'memory', maxBytes: `${roomKib}KiB` }] }), is),
  ],
  ['cidgate, response cache', (is) => shareOf(cidgate({ responses: { maxBytes: `${roomKib}KiB` }, tiers: [] }), is)],
  ['plain LRU', shareOfLru],
]
if (isInstalled('nginx')) caches.push(['nginx', (is) => shareOf(() => startNginxCache(asUpstream, kept), is)])
if (isInstalled('varnishd'))
  caches.push(['varnish', (is) => shareOf(() => startVarnish(asUpstream, roomKib * 1024), is)])

const percent = (value: number): string => `${(value * 100).toFixed(1)} %`
process.stdout.write('| cache | readers alone | beside a crawler | points | aim |\n|---|---|---|---|---|\n')
for (const [name, shareWith] of caches) {
  const [baseline, loaded] = [await shareWith(false), await shareWith(true)]
  const points = (loaded - baseline) * 100
  const aim = name.startsWith('cidgate') ? `-${maxDrop}, ${points >= -maxDrop ? 'met' : 'not met'}` : ''
  process.stdout.write(`| ${name} | ${percent(baseline)} | ${percent(loaded)} | ${points.toFixed(1)} | ${aim} |\n`)
}
origin.close()
