// Which upstreams a configuration makes of its providers: one for each place, called as the provider is, and none where the
// operator named the very same place already.
import assert from 'node:assert/strict'
import { afterEach, describe, test } from 'node:test'
import { parseConfig } from '../../src/config/load.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { createTrace } from '../../src/core/wire/trace.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { wireBackends } from '../../src/wiring/backends.ts'
import { createComponentRegistry, type Lease, nothingOfItsOwn, takeScheduler } from '../../src/wiring/components.ts'

const leases: Lease[] = []
afterEach(async () => {
  for (const lease of leases.splice(0)) await lease.end()
})

type Entries = readonly Record<string, unknown>[]

/** Name, and the provider that it reads. */
function readBacksOf(providers: Entries, upstreams: Entries = []) {
  const config = parseConfig({ data: '/nonexistent', retrieval: { upstreams }, pinning: { providers } })
  const lease = createComponentRegistry().lease()
  leases.push(lease)
  const { upstreams: wired } = wireBackends({
    config,
    userAgent: config.retrieval.userAgent,
    clock: systemClock,
    log: silentLog,
    lease,
    turns: takeScheduler(lease, systemClock),
    folders: processFolders,
    own: nothingOfItsOwn,
    trace: createTrace(),
  })
  return wired.map(({ upstream, of, perMinute }) => [upstream.name, of, perMinute])
}

const kubo = { name: 'kubo', use: 'kubo', url: 'http://127.0.0.1:5001' }
const gateway = 'https://gateway.example.org'

describe('upstreams derived from providers', () => {
  test("added to configured ones under the provider's name", () => {
    assert.deepEqual(readBacksOf([{ use: 'embedded' }, kubo], [{ name: 'other', url: gateway }]), [
      ['other', undefined, undefined],
      ['kubo', 'kubo', undefined],
    ])
  })

  test('name taken → another name', () => {
    const upstreams = [
      { name: 'kubo', url: gateway },
      { name: 'provider-kubo', url: `${gateway}/two` },
    ]
    assert.deepEqual(readBacksOf([kubo], upstreams).at(-1), ['provider-provider-kubo', 'kubo', undefined])
  })

  test('same address already an upstream → none', () => {
    const forward = { name: 'main', use: 'forward', url: `${gateway}/add` }
    assert.deepEqual(readBacksOf([forward], [{ name: 'main', url: gateway }]), [['main', undefined, undefined]])
    const node = { name: 'node', use: 'kubo', url: 'http://127.0.0.1:5001/' }
    assert.deepEqual(readBacksOf([kubo], [node]), [['node', undefined, undefined]])
    assert.equal(readBacksOf([kubo, { ...kubo, name: 'again' }]).length, 1)
  })

  test('same address with another key or protocol → added', () => {
    const own = { ...kubo, auth: { bearer: 'token' } }
    assert.equal(readBacksOf([own], [{ name: 'node', use: 'kubo', url: kubo.url }]).length, 2)
    assert.equal(readBacksOf([kubo], [{ name: 'node', url: kubo.url }]).length, 2)
  })

  test('disabled, or no known gateway → none', () => {
    const keys = { accessKeyId: 'a', secretAccessKey: 'b', bucket: 'b' }
    const none: Entries = [
      { ...kubo, gateway: false },
      { use: 'cluster', url: 'http://127.0.0.1:9094' },
      { use: 'filebase', endpoint: 'http://127.0.0.1:1', ...keys },
      { use: 'pinata', token: 't', apiUrl: 'http://127.0.0.1:1' },
    ]
    assert.deepEqual(readBacksOf(none), [])
  })

  test('limits of public gateways apply', () => {
    const keys = { accessKeyId: 'a', secretAccessKey: 'b', bucket: 'b' }
    const hosted: Entries = [
      { name: 'pinata', use: 'pinata', token: 't' },
      { name: 'filebase', use: 'filebase', ...keys },
      { name: '4everland', use: 'filebase', variant: '4everland', ...keys },
    ]
    assert.deepEqual(readBacksOf(hosted), [
      ['pinata', 'pinata', 200],
      ['filebase', 'filebase', 200],
      ['4everland', '4everland', 300],
    ])
  })
})
