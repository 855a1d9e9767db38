// Which parts of a gateway go over to the next one, and which are made anew, by what changed between their configurations.
import assert from 'node:assert/strict'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, afterEach, before, describe, it } from 'node:test'
import { parseConfig } from '../../src/config/load.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { createTrace } from '../../src/core/wire/trace.ts'
import { createDataFolders } from '../../src/data-folder/folder.ts'
import { joinStore } from '../../src/store/open.ts'
import { bytesOf, cidOf } from '../../src/testing/tier.ts'
import { wireBackends } from '../../src/wiring/backends.ts'
import { createKept, type Kept, type Lease } from '../../src/wiring/component-registry.ts'
import type { Denials } from '../../src/wiring/denials.ts'
import { wirePublic } from '../../src/wiring/public.ts'
import { wireReading } from '../../src/wiring/reading.ts'
import { everyStack, wireTiers } from '../../src/wiring/tiers.ts'
import { wireUploads } from '../../src/wiring/uploads.ts'
import { nothingOfItsOwn, takeTurns } from '../../src/wiring/wiring-context.ts'
import { tempFolder } from '../support/gateway.ts'

let data: string
before(async () => {
  data = await tempFolder()
  await writeFile(join(data, 'list.deny'), '')
})
after(async () => {
  await rm(data, { recursive: true, force: true })
})

const folders = createDataFolders()
const leases: Lease[] = []
afterEach(async () => {
  for (const lease of leases.splice(0)) await lease.end()
})

/** All that a gateway of this configuration stands on. */
async function partsOf(kept: Kept, more: Record<string, unknown>) {
  const { denylists = [], ...rest } = more as { denylists?: string[] }
  const config = parseConfig({ data, ...base, ...rest, denylists: denylists.map((list) => join(data, list)) })
  const lease = kept.lease()
  leases.push(lease)
  const whole = {
    config,
    clock: systemClock,
    log: silentLog,
    lease,
    turns: takeTurns(lease, systemClock),
    folders,
    own: nothingOfItsOwn,
    trace: createTrace(),
  }
  const folder = folders.enter(data)
  const { store } = lease.take(
    'store',
    [data],
    () => joinStore(folder, { clock: systemClock, log: silentLog }),
    (one) => one.leave(),
  )
  const { providers, tiers: bare, upstreams } = wireBackends(whole)
  const tiers = wireTiers(whole, bare, { providers, left: [], store })
  const reading = await wireReading(whole, { ...tiers, upstreams, records: { store, write: async () => {} } })
  const uploads = wireUploads(whole, { folder, store, providers, left: [], reading, tiers: [], ...wirePublic(whole) })
  const named = <Part extends { readonly name: string }>(kind: string, parts: readonly Part[]) =>
    parts.map((part) => [`${kind} ${part.name}`, part] as const)
  const all = new Map<string, unknown>([
    ...named('tier', bare),
    ...named('guard', tiers.guards),
    ...named('provider', providers),
    ...upstreams.map((one) => [`upstream ${one.upstream.name}`, one] as const),
    ['stack', tiers.stack],
    ['turns', whole.turns],
    ['pool', reading.pool],
    // Its readers ask other lists after a change of those; what it has and does is the same.
    ['retrieval', reading.retrieval.stats],
    ['hot', reading.hot],
    ['denylists', reading.denials.lists],
    ['names', reading.names],
    ['uploads', uploads.pins],
  ])
  return all
}

const memory = { use: 'memory', maxBytes: '1MiB' }
const disk = { use: 'disk', maxBytes: '1GiB' }
const redis = { use: 'redis', url: 'redis://127.0.0.1:9' }
const one = { name: 'one', url: 'http://127.0.0.1:9' }
const two = { name: 'two', url: 'http://127.0.0.1:10' }
const local = { name: 'local', use: 'embedded' }
const kubo = { name: 'kubo', use: 'kubo', url: 'http://127.0.0.1:9' }
const retrieval = { probeEvery: 0, upstreams: [one, two] }
const pinning = { probeEvery: 0, providers: [local, kubo] }
const base = { retrieval, pinning, cache: { tiers: [memory, disk, redis] } }

describe('configuration changes', () => {
  const rows: [changed: string, more: Record<string, unknown>, anew: string[]][] = [
    ['nothing', {}, []],
    [
      'addresses, limits and the log',
      { listen: ':1', admin: false, limits: { shutdownTimeout: '1s' }, log: { level: 'debug' } },
      [],
    ],
    [
      'a tier',
      { cache: { tiers: [memory, { ...disk, maxBytes: '2GiB' }, redis] } },
      ['tier disk', 'guard disk', 'stack', 'retrieval'],
    ],
    ['the order of tiers', { cache: { tiers: [memory, redis, disk] } }, ['stack', 'retrieval']],
    ['what may wait for a tier', { cache: { ...base.cache, writeQueueBytes: '1MiB' } }, ['stack', 'retrieval']],
    ['complete answers', { cache: { ...base.cache, responses: { maxItemBytes: '2KiB' } } }, ['hot']],
    [
      'an upstream',
      { retrieval: { ...retrieval, upstreams: [one, { ...two, perMinute: 9 }] } },
      ['upstream two', 'pool', 'retrieval', 'names'],
    ],
    ['the order of upstreams', { retrieval: { ...retrieval, upstreams: [two, one] } }, ['pool', 'retrieval', 'names']],
    ['hedging', { retrieval: { ...retrieval, hedgeDelay: '1s' } }, ['pool', 'retrieval', 'names']],
    ['a deadline', { retrieval: { ...retrieval, timeout: '9s' } }, ['pool', 'retrieval', 'names']],
    [
      'a provider',
      { pinning: { ...pinning, providers: [local, { ...kubo, uploadAs: 'add' }] } },
      ['provider kubo', 'uploads'],
    ],
    ['how many providers confirm', { pinning: { ...pinning, minConfirmations: 2 } }, ['uploads']],
    ['uploads', { upload: { concurrency: 3 } }, ['uploads']],
    ['names', { names: { timeout: '9s' } }, ['names', 'hot']],
    ['denylists', { denylists: ['list.deny'] }, ['denylists', 'names', 'hot']],
  ]
  for (const [changed, more, anew] of rows)
    it(`${changed} changes → only dependent parts are new`, async () => {
      const kept = createKept()
      const before = await partsOf(kept, {})
      const now = await partsOf(kept, more)
      const different = [...now].flatMap(([name, part]) => (before.get(name) === part ? [] : [name]))
      assert.deepEqual(different.sort(), [...anew].sort())
    })
})

it('unchanged reload → later parts share the event-loop scheduler', async () => {
  const kept = createKept()
  const before = await partsOf(kept, {})
  await partsOf(kept, { listen: ':1' })
  await leases.shift()?.end()
  const now = await partsOf(kept, { retrieval: { ...retrieval, upstreams: [one] } })
  assert.equal(now.get('turns'), before.get('turns'))
})

describe('two gateways over one folder', () => {
  it('takedown at either → applies in both, tiers of both purged', async () => {
    const kept = createKept()
    const before = await partsOf(kept, {})
    const now = await partsOf(kept, { denylists: ['list.deny'], cache: { ...base.cache, writeQueueBytes: '1MiB' } })
    const lists = [before, now].map((parts) => parts.get('denylists') as Denials['lists'])
    for (const [index, one] of lists.entries()) {
      const cid = cidOf(bytesOf(10, index))
      const taken = one.takeDown(cid, { legal: false, reason: undefined })
      // It does not wait for the disk.
      for (const each of lists) assert.equal(each.path(cid, [])?.list, 'takedowns')
      await taken
      for (const each of lists) assert.equal(each.path(cid, [])?.list, 'takedowns')
    }
    const stacks = [...everyStack(leases.at(-1) as Lease)]
    assert.deepEqual(new Set<unknown>(stacks), new Set([before.get('stack'), now.get('stack')]))
  })
})
