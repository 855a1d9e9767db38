// The gateway as a library: what it may be made of.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { after, before, describe, it } from 'node:test'
import { silentLog } from '../../src/core/log.ts'
import { type ConfigInput, createGateway, parseConfig } from '../../src/gateway.ts'
import { tempFolder } from '../support/gateway.ts'

describe('a gateway in a program of yours', () => {
  let data: string
  before(async () => {
    data = await tempFolder()
  })
  after(() => rm(data, { recursive: true, force: true }))

  const inputs: readonly (readonly [what: string, make: () => Parameters<typeof createGateway>[0]])[] = [
    ['what a file would say', () => ({ data, retrieval: { upstreams: [] } })],
    ['the same, frozen', () => Object.freeze({ data, retrieval: Object.freeze({ upstreams: [] }) })],
    ['a configuration', () => parseConfig({ data, retrieval: { upstreams: [] } })],
    ['a copy of one', () => ({ ...parseConfig({ retrieval: { upstreams: [] } }), data, log: { level: 'warn' } })],
  ]
  for (const [what, make] of inputs)
    it(`is made of ${what}`, async () => {
      const gateway = await createGateway(make(), { log: silentLog })
      await gateway.close()
    })

  it('has a type for what an operator writes: the compiler knows every key, and every backend by its `use`', () => {
    const written: ConfigInput = {
      listen: ':8080',
      retrieval: {
        deadline: '5s',
        probeEvery: 0,
        upstreams: [
          { url: 'https://example.org', perMinute: 60, firstByte: '2s' },
          { use: 'kubo', url: 'http://127.0.0.1:5001' },
        ],
      },
      cache: {
        tiers: [
          { use: 'memory', maxBytes: '64MiB' },
          { use: 'redis', url: 'redis://localhost', ttl: '1h' },
        ],
      },
      pinning: { confirm: 'all', providers: [{ use: 'embedded', name: 'local' }] },
    }
    assert.equal(parseConfig(written).pinning.confirm, 'all')
    // What a file with these mistakes would be refused for, an editor underlines.
    const wrong: ConfigInput[] = [
      // @ts-expect-error: there is no such key.
      { retrieval: { deadlin: '5s' } },
      // @ts-expect-error: a number has no unit.
      { retrieval: { deadline: 5 } },
      // @ts-expect-error: there is no such backend.
      { cache: { tiers: [{ use: 'dsk' }] } },
      // @ts-expect-error: this option is of another backend.
      { cache: { tiers: [{ use: 'memory', path: './here' }] } },
      // @ts-expect-error: a provider has no kind that is meant without being named.
      { pinning: { providers: [{ name: 'local' }] } },
    ]
    for (const one of wrong) assert.throws(() => parseConfig(one), { name: 'ConfigError' })
  })

  it('is not made of what makes no sense, frozen or not', async () => {
    const wrong = Object.freeze({ data, listen: 'eighty' })
    await assert.rejects(createGateway(wrong, { log: silentLog }), {
      name: 'ConfigError',
    })
  })
})
