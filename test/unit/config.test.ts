// The configuration, by cases: each file of test/config is an input and, in comments at its end, the environment it is
// read in and what comes out: `path = JSON` for a result, or the exact lines of its errors. A case more is a file more.
import assert from 'node:assert/strict'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { z } from 'zod'
import { httpReference } from '../../scripts/http-reference.ts'
import { jsonSchema } from '../../scripts/json-schema.ts'
import { reference } from '../../scripts/reference.ts'
import { ConfigError, keyPath, renamedKeys, valueAt } from '../../src/config/complaints.ts'
import { entries } from '../../src/config/entries.ts'
import { isConfig, loadConfig, notesOnPublicList, parseConfig } from '../../src/config/load.ts'
import { shipped } from '../../src/config/package.ts'

const casesFolder = new URL('../config/', import.meta.url)

type Case = { environment: Record<string, string>; result?: string[]; errors?: string[]; 'errors-match'?: string[] }

function readCase(text: string): Case {
  const [, ...parts] = text.split(/^# --- /m)
  const found: Case = { environment: {} }
  for (const part of parts) {
    const [title, ...rest] = part.trimEnd().split('\n')
    const lines = rest.map((line) => line.replace(/^# /, ''))
    if (title === 'environment') {
      for (const line of lines) found.environment[line.slice(0, line.indexOf('='))] = line.slice(line.indexOf('=') + 1)
    } else if (title === 'result' || title === 'errors' || title === 'errors-match') found[title] = lines
    else assert.fail(`no such part: ${title}`)
  }
  assert.ok(found.result ?? found.errors ?? found['errors-match'], 'a case has to expect something')
  return found
}

function refused(load: () => unknown): ConfigError {
  try {
    load()
  } catch (error) {
    if (error instanceof ConfigError) return error
    throw error
  }
  return assert.fail('it was accepted')
}

const errorsOf = (load: () => unknown): readonly string[] => refused(load).lines

function isFrozen(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return true
  return Object.isFrozen(value) && Object.values(value).every(isFrozen)
}

describe('configuration', () => {
  for (const file of readdirSync(casesFolder)) {
    it(file.replace('.yaml', '').replaceAll('-', ' '), () => {
      const path = new URL(file, casesFolder)
      const expected = readCase(readFileSync(path, 'utf8'))
      const load = () => loadConfig(path.pathname, expected.environment)
      if (expected.result) {
        const config = load()
        assert.ok(isFrozen(config), 'a configuration never changes')
        for (const line of expected.result) {
          const [key = '', json = ''] = line.split(' = ')
          const keys = [...key.matchAll(/\[(\d+)\]|([^.[\]]+)/g)].map(([, index, name]) =>
            index ? Number(index) : (name ?? ''),
          )
          assert.equal(keyPath(keys), key)
          assert.deepEqual(valueAt(config, keys), JSON.parse(line.slice(key.length + 3)), `${key} (${json})`)
        }
        return
      }
      const lines = errorsOf(load)
      if (expected.errors) assert.deepEqual(lines, expected.errors)
      const patterns = expected['errors-match'] ?? []
      if (patterns.length > 0) assert.equal(lines.length, patterns.length, lines.join('\n'))
      for (const [index, pattern] of patterns.entries()) assert.match(lines[index] ?? '', new RegExp(pattern))
      assert.doesNotMatch(lines.join('\n'), /hunter2/)
    })
  }

  const kindWith: Readonly<Record<string, object>> = {
    'pinning.providers[].how': { use: 'kubo', url: 'http://127.0.0.1:1' },
    'pinning.providers[].patience': { use: 'filebase', bucket: 'b', accessKeyId: 'a', secretAccessKey: 's' },
    'pinning.providers[].pieceBytes': { use: 'pinata', token: 't' },
    'cache.tiers[].missing403': { use: 's3', bucket: 'b' },
  }

  for (const [old, name] of Object.entries(renamedKeys)) {
    it(`${old} is refused with its new name`, () => {
      const kind = kindWith[old] ?? { use: old.startsWith('pinning') ? 'kubo' : 'trustless', url: 'http://127.0.0.1:1' }
      const said = old
        .split('.')
        .reduceRight<unknown>(
          (inner, key) =>
            key.endsWith('[]') ? { [key.slice(0, -2)]: [{ ...kind, ...Object(inner) }] } : { [key]: inner },
          1,
        )
      const at = (key: string) => key.replace('[]', '[0]')
      assert.deepEqual(
        errorsOf(() => parseConfig(said)),
        [`config: ${at(old)} is called ${at(name)}`],
      )
    })
  }

  it("no file → shipped default, equal to the schema's defaults", () => {
    assert.deepEqual(loadConfig(undefined, {}), parseConfig({}))
  })

  const full = {
    listen: '127.0.0.1:0',
    admin: false,
    data: '/tmp/somewhere',
    upload: { maxBytes: '5MiB', auth: { tokens: ['$${'.repeat(8)] }, kuboRpc: true },
    pinning: { minConfirmations: 1, providers: [{ use: 'kubo', name: 'k', url: 'http://127.0.0.1:5001' }] },
    retrieval: { timeout: '1s', upstreams: [{ url: 'https://one.example', perMinute: 5 }] },
    cache: { tiers: [{ use: 'memory', maxBytes: '1MiB' }] },
    hosts: { 'a.example': { subdomains: true } },
    trustedProxies: ['10.0.0.0/8', '127.0.0.1'],
    names: { timeout: '1s', static: { 'b.example': '/ipfs/bafkqaaa' } },
    responses: { types: 'web' },
    limits: { perClient: { perMinute: 7 } },
    proxy: [{ path: '/status', to: 'http://127.0.0.1:1' }],
    denylists: ['/etc/list.deny'],
    log: { level: 'debug' },
  }

  it('derived from another with overrides', () => {
    for (const said of [{}, full]) {
      const first = parseConfig(said)
      assert.deepEqual(parseConfig({ ...first }), first)
      const other = parseConfig({ ...first, listen: ':80', upload: { maxBytes: '1MiB' } })
      assert.deepEqual([other.listen, other.upload.maxBytes], [{ host: '::', port: 80 }, 1024 * 1024])
      assert.deepEqual({ ...other, listen: first.listen, upload: first.upload }, first)
      assert.deepEqual(parseConfig({ ...parseConfig({ ...other }), upload: first.upload, listen: first.listen }), first)
    }
  })

  it('from plain or frozen input → recognized as a configuration', () => {
    const said = Object.freeze({ data: '/tmp/somewhere', log: Object.freeze({ level: 'warn' }) })
    const config = parseConfig(said)
    assert.equal(config.log.level, 'warn')
    assert.deepEqual([isConfig(config), isConfig(said), isConfig({ ...config })], [true, false, false])
    assert.deepEqual(Object.getOwnPropertySymbols({ ...config }), [])
  })

  it('CIDGATE_CONFIG is used unless the command line names a file', () => {
    const archive = new URL('archive.yaml', casesFolder).pathname
    assert.deepEqual(loadConfig(undefined, { CIDGATE_CONFIG: archive }).retrieval.upstreams, [])
    assert.notDeepEqual(
      loadConfig(new URL('empty.yaml', casesFolder).pathname, { CIDGATE_CONFIG: archive }).retrieval.upstreams,
      [],
    )
  })

  it('each mistake has file, line and column, or variable', () => {
    const file = new URL('places.yaml', casesFolder).pathname
    const places = refused(() => loadConfig(file, { CIDGATE_ADMIN: 'nowhere', LONG: 'a-secret-of-its-reader' }))
      .message.split('\n')
      .map((line) => /^config: (\S+): .* \[(.*)\]$/.exec(line)?.slice(1))
    assert.deepEqual(places, [
      ['admin', 'CIDGATE_ADMIN'],
      ['upload.auth.tokens[1]', `${file}:5:9`],
      ['upload.maxByte', `${file}:6:3`],
      ['cache.tiers[0].bucket', `${file}:8:18`],
      ['cache.tiers[1].maxBytes', `${file}:9:27`],
    ])
  })

  it('unreadable file → reported', () => {
    assert.deepEqual(
      errorsOf(() => loadConfig('/nowhere/cidgate.yaml', {})),
      ['config: /nowhere/cidgate.yaml: cannot be read: ENOENT (expected a file)'],
    )
  })

  it('secret from a file → without trailing newline', () => {
    const folder = mkdtempSync(join(tmpdir(), 'cidgate-'))
    try {
      const secret = join(folder, 'token')
      writeFileSync(secret, 's3cret-of-16-characters\n')
      const config = parseConfig({ upload: { auth: { tokens: [`\${file:${secret}}`] } } })
      assert.deepEqual(config.upload.auth, { tokens: ['s3cret-of-16-characters'] })
      writeFileSync(secret, '\n')
      assert.deepEqual(
        errorsOf(() => parseConfig({ upload: { auth: { tokens: [`\${file:${secret}}`] } } })),
        [`config: upload.auth.tokens[0]: ${secret} is empty (expected a secret in it)`],
      )
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  it('editor schema is up to date (npm run schema)', () => {
    assert.equal(readFileSync(shipped('config/schema.json'), 'utf8'), jsonSchema())
  })

  it('generated pages are up to date (npm run schema)', () => {
    assert.equal(readFileSync(new URL('../../docs/configuration.md', import.meta.url), 'utf8'), reference())
    assert.equal(readFileSync(new URL('../../docs/http.md', import.meta.url), 'utf8'), httpReference())
  })

  it('every option has a description', () => {
    const undescribed: string[] = []
    const walk = (part: { properties?: Record<string, object>; description?: string }, path: string) => {
      for (const [key, value] of Object.entries(part.properties ?? {})) {
        const inner = value as { properties?: Record<string, object>; description?: string }
        if (!inner.properties && !inner.description) undescribed.push(`${path}${key}`)
        walk(inner, `${path}${key}.`)
      }
    }
    walk(JSON.parse(jsonSchema()), '')
    assert.deepEqual(undescribed, [])
  })

  it('upstream list reviewed over 90 days ago → note', async () => {
    const { retrieval } = parseConfig({})
    const places = retrieval.upstreams.map(({ options }) => String(Object(options).url))
    assert.ok(places.length >= 8)
    const isClosing = (url: string) => /(?:ipfs\.io|dweb\.link|trustless-gateway\.link)$/.test(url)
    assert.deepEqual(
      places.filter(isClosing),
      places.slice(-1).filter(isClosing),
      'a backend that closes is asked before others',
    )
    const [, date = ''] = /^reviewed: (\S+)$/m.exec(readFileSync(shipped('config/upstreams.yaml'), 'utf8')) ?? []
    const days = (count: number) => Date.parse(date) + count * 86_400_000
    assert.deepEqual(notesOnPublicList(undefined, days(90)), [])
    const [note = ''] = notesOnPublicList(undefined, days(91))
    assert.match(
      note,
      new RegExp(`reviewed 91 days ago \\(${date}\\); update cidgate, or name your own in retrieval\\.upstreams$`),
    )
    assert.deepEqual(notesOnPublicList(fileURLToPath(shipped('config/examples/archive.yaml')), days(1000)), [])
  })

  const examples = readdirSync(shipped('config/examples/'))
  for (const file of examples) {
    it(`example ${file} → accepted`, () => {
      const path = shipped(`config/examples/${file}`)
      // An example names secrets of its reader: here they are all set.
      const names = [...readFileSync(path, 'utf8').matchAll(/(?<!\$)\$\{(\w+)\}/g)].map(([, name = '']) => name)
      const values = names.map((name) => [
        name,
        name.endsWith('_URL') ? 'redis://:secret@redis.example.org' : 'a-secret-of-its-reader',
      ])
      assert.ok(loadConfig(path.pathname, Object.fromEntries(values)))
    })
  }
})

describe('backend options', () => {
  it('never use names reserved by the list', () => {
    const kinds = (shape: z.ZodRawShape) => ({ one: { use: 'one', options: z.strictObject(shape) } })
    for (const key of ['use', 'name']) assert.throws(() => entries(kinds({ [key]: z.string() })), /one .+ its own: /)
    assert.throws(() => entries(kinds({ perMinute: z.int() }), { perMinute: z.int() }, 'one'), /perMinute/)
    assert.ok(entries(kinds({ uploadName: z.string() })))
  })
})
