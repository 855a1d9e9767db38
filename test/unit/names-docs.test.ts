// The `names:` example of docs/websites.md is valid and shows the defaults.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { parse } from 'yaml'
import { parseConfig } from '../../src/config/load.ts'

test("example is valid, with the schema's defaults", () => {
  const page = readFileSync(new URL('../../docs/websites.md', import.meta.url), 'utf8')
  const [, example = ''] = /```yaml\n(names:[\s\S]*?)```/.exec(page) ?? []
  const { names } = parseConfig(parse(example))
  const { dns, static: links, ...rest } = names
  const { dns: _system, static: _none, ...defaults } = parseConfig({}).names
  assert.equal(dns.length, 2)
  assert.deepEqual(links, { 'docs.house.example': '/ipfs/bafkqaaa' })
  assert.deepEqual(rest, defaults)
})
