// `node bench/tail.ts`: the p99 response time over five upstreams with realistic latencies:
// log-normal, two percent stalls, one upstream ten times as slow. The gateway over all of them,
// against the best one and a random one.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { loadavg } from 'node:os'
import { fileURLToPath } from 'node:url'
import { CID } from 'multiformats/cid'
import pAny from 'p-any'
import { proves } from '../src/core/cid.ts'
import { startGateway } from '../test/support/gateway.ts'
import { numbers } from './work/zipf.ts'

const files = Number(process.env['BENCH_FILES'] ?? 600)
const lessons = Math.floor(files / 6)
const atOnce = 4
const timeoutMs = 10_000
// At 1.1 requests a file the best single hedge has 2.7 times the p99 of all at once here.
const aims = { ofAll: 3, requests: 1.1 }

const child = fork(fileURLToPath(new URL('tail-upstreams.ts', import.meta.url)), [String(files)])
const [{ urls, cids }] = (await once(child, 'message')) as [{ urls: string[]; cids: string[] }]

async function askedSoFar(): Promise<number> {
  child.send('asked')
  const [asked] = (await once(child, 'message')) as [number]
  return asked
}

async function proved(url: string, cid: string, signal: AbortSignal): Promise<void> {
  const answer = await fetch(`${url}/ipfs/${cid}?format=raw`, { signal })
  const bytes = new Uint8Array(await answer.arrayBuffer())
  if (answer.status !== 200 || !proves(CID.parse(cid), bytes)) throw new Error(`${url}: ${answer.status}`)
}

type Ask = (cid: string, signal: AbortSignal) => Promise<unknown>
type Figure = { readonly p50: number; readonly p99: number; readonly requests: number; readonly failed: number }

/** The first files warm up; the others are measured. */
async function measure(ask: Ask): Promise<Figure> {
  const times: number[] = []
  let failed = 0
  const rest = [...cids].reverse()
  let before = 0
  const work = async () => {
    for (let cid = rest.pop(); cid !== undefined; cid = rest.pop()) {
      const index = files - rest.length - 1
      if (index === lessons) before = await askedSoFar()
      const began = performance.now()
      const stop = new AbortController()
      const timer = setTimeout(() => stop.abort(new Error('too late')), timeoutMs)
      const isThere = await ask(cid, stop.signal).then(
        () => true,
        () => false,
      )
      clearTimeout(timer)
      stop.abort()
      if (index < lessons) continue
      times.push(isThere ? performance.now() - began : timeoutMs)
      if (!isThere) failed++
    }
  }
  await Promise.all(Array.from({ length: atOnce }, work))
  times.sort((one, other) => one - other)
  const at = (share: number) => times[Math.ceil(times.length * share) - 1] ?? 0
  return { p50: at(0.5), p99: at(0.99), requests: ((await askedSoFar()) - before) / times.length, failed }
}

const random = numbers(9)
const gateway = await startGateway({ upstreams: urls.map((url, index) => ({ name: `u${index}`, url })) })
const contenders: Readonly<Record<string, Ask>> = {
  cidgate: (cid, signal) => proved(gateway.url, cid, signal),
  'all at once (p-any)': (cid, signal) => {
    const losers = new AbortController()
    const own = AbortSignal.any([signal, losers.signal])
    return pAny(urls.map((url) => proved(url, cid, own))).finally(() => losers.abort())
  },
  'the best one': (cid, signal) => proved(urls[0] ?? '', cid, signal),
  'one at random': (cid, signal) => proved(urls[Math.floor(random() * urls.length)] ?? '', cid, signal),
}
const figures = new Map<string, Figure>()
for (const [name, ask] of Object.entries(contenders)) {
  const figure = await measure(ask)
  figures.set(name, figure)
  const { p50, p99, requests, failed } = figure
  process.stdout.write(
    `${name.padEnd(22)} p50 ${p50.toFixed(0).padStart(5)} ms  p99 ${p99.toFixed(0).padStart(6)} ms  ${requests.toFixed(2)} requests a file  ${failed} not answered within ${timeoutMs / 1000} s\n`,
  )
}
const [own, all] = [figures.get('cidgate'), figures.get('all at once (p-any)')]
if (own && all) {
  const ratio = own.p99 / all.p99
  const holds = ratio <= aims.ofAll && own.requests <= aims.requests
  process.stdout.write(
    `${holds ? 'holds ' : 'MISSED'} p99 ${ratio.toFixed(2)} x of all at once (aim ${aims.ofAll}), ${own.requests.toFixed(2)} requests (aim ${aims.requests}); load ${loadavg()[0]?.toFixed(1)}\n`,
  )
}
await gateway.close()
child.disconnect()
