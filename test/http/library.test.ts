// The gateway as a library: what it may be made of.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { after, before, describe, it } from 'node:test'
import { silentLog } from '../../src/core/log.ts'
import { createGateway, parseConfig } from '../../src/gateway.ts'
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

  it('is not made of what makes no sense, frozen or not', async () => {
    await assert.rejects(createGateway(Object.freeze({ data, listen: 80 }), { log: silentLog }), {
      name: 'ConfigError',
    })
  })
})
