// Fault: a gateway that is reloaded by every deployment for months, and leaks a little each time: memory, timers, sockets, event
// loop monitors.
import assert from 'node:assert/strict'
import { syncBuiltinESMExports } from 'node:module'
import perf from 'node:perf_hooks'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { queryObjects, setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { LRUCache } from 'lru-cache'
import { multipart, post } from '../support/adding.ts'
import { type Fixtures, fixtures, noise } from '../support/fixtures.ts'
import type { Said, Served } from '../support/served.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const watches = { begun: 0, ended: 0 }
const { monitorEventLoopDelay } = perf
perf.monitorEventLoopDelay = (options) => {
  const watch = monitorEventLoopDelay(options)
  return Object.assign(watch, {
    enable: () => {
      watches.begun++
      return Object.getPrototypeOf(watch).enable.call(watch)
    },
    disable: () => {
      watches.ended++
      return Object.getPrototypeOf(watch).disable.call(watch)
    },
  })
}
syncBuiltinESMExports()

let all: Fixtures
let upstream: ProgrammableUpstream
let served: Served
before(async () => {
  const { startServed } = await import('../support/served.ts')
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
  served = await startServed(said())
})
after(async () => {
  await served.close()
  await upstream.close()
})

const dead = 'http://127.0.0.1:9'
const said = (more: Said = {}): Said => ({
  limits: { perClient: { perMinute: 1_000_000 } },
  names: { dns: ['http://127.0.0.1:9/dns-query'] },
  retrieval: {
    probeEvery: '10m',
    timeout: '200ms',
    upstreams: [
      { name: 'one', url: upstream.url },
      { name: 'dead', url: dead },
    ],
  },
  cache: {
    tiers: [
      { use: 'memory', maxBytes: '1MiB' },
      { use: 'disk', maxBytes: '64MiB' },
      { use: 'redis', url: 'redis://127.0.0.1:9' },
    ],
  },
  pinning: {
    probeEvery: '1h',
    providers: [
      { name: 'local', use: 'embedded' },
      { name: 'kubo', use: 'kubo', url: dead },
    ],
  },
  ...more,
})

/** Everything that is made for a gateway is made anew by one of these. */
const changes = (): Said[] => [
  said(),
  said({
    cache: {
      responses: { maxBytes: '1MiB' },
      tiers: [
        { use: 'memory', maxBytes: '2MiB' },
        { use: 'redis', url: 'redis://127.0.0.1:10' },
      ],
    },
  }),
  said({
    retrieval: { timeout: '200ms', userAgent: 'another', upstreams: [{ name: 'one', url: upstream.url }] },
    names: { dns: ['http://127.0.0.1:10/dns-query'] },
  }),
  said({
    pinning: { minConfirmations: 1, providers: [{ name: 'local', use: 'embedded' }] },
    upload: { concurrency: 7 },
    responses: { types: 'web' },
  }),
]

/** What is asked leaves its traces, answered in time or not: the deadline is short. Says whether a small file came. */
async function use(round: number): Promise<boolean> {
  const { get, url } = served
  const [hello] = await Promise.allSettled([
    get(`/ipfs/${all.files.hello.cid}`),
    get(`/ipfs/${all.files.chunkedV1.cid}`),
    get(`/ipfs/${all.directory}/nothing-${round}`),
    get('/ipns/example.org'),
    round === 1 ? post(`${url}/add`, multipart([{ fileName: 'a', body: noise(500, 5) }])) : undefined,
  ])
  return hello.status === 'fulfilled' && hello.value.status === 200
}

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

/** To count them takes a look at the whole heap. */
const countCaches = () => queryObjects(LRUCache, { format: 'count' })

/** What is there for one gateway at a time, besides caches. */
function alive() {
  const timers = process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length
  const gateways = served.made.filter((one) => one.deref() !== undefined).length
  return { timers, gateways, watches: watches.begun - watches.ended }
}

test('many reloads leak no gateway, timer, monitor or cache', async () => {
  let answered = 0
  const again = async (what: readonly Said[]) => {
    for (const [round, more] of what.entries()) {
      assert.equal(await served.reload(more), true)
      if (await use(round)) answered++
    }
  }
  // Objects that are made only once are made by then.
  await again([...changes(), said()])
  // A gateway that was replaced may still be closing: what it holds until then is no leak.
  const settled = async (isEnough: (now: ReturnType<typeof alive>) => boolean) => {
    let now = alive()
    for (const until = Date.now() + 20_000; !isEnough(now) && Date.now() < until; ) {
      await sleep(100)
      collect()
      now = alive()
    }
    return now
  }
  const once = await settled((now) => now.gateways === 1)
  const cachesOnce = countCaches()
  await again([...changes(), said(), said(), said(), ...changes(), said()])
  const most = { timers: once.timers + 2, gateways: 1, watches: 1 }
  const names = Object.keys(most) as (keyof typeof most)[]
  const left = await settled((now) => names.every((name) => now[name] <= most[name]))
  for (const name of names)
    assert.ok(left[name] <= most[name], `${name}: ${left[name]}, and after the first reloads ${once[name]}`)
  let caches = countCaches()
  for (const until = Date.now() + 20_000; caches > cachesOnce + 2 && Date.now() < until; caches = countCaches())
    await sleep(200)
  assert.ok(caches <= cachesOnce + 2, `${caches} caches, and after the first reloads ${cachesOnce}`)
  assert.ok(answered >= 9, `${answered} of 17 were answered`)
})
