// The configuration, by cases: each file of test/config is an input and, in comments at its end, the environment it is
// read in and what comes out: `path = JSON` for a result, or the exact lines of its errors. A case more is a file more.
import assert from 'node:assert/strict'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, it } from 'node:test'
import { z } from 'zod'
import { ConfigError, keyPath, valueAt } from '../../src/config/complaints.ts'
import { entries, entriesWith } from '../../src/config/entries.ts'
import { jsonSchema } from '../../src/config/json-schema.ts'
import { loadConfig, parseConfig } from '../../src/config/load.ts'
import { shipped } from '../../src/config/package.ts'
import { reference } from '../../src/config/reference.ts'

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

const errorsOf = (load: () => unknown): readonly string[] => {
  try {
    load()
  } catch (error) {
    if (error instanceof ConfigError) return error.lines
    throw error
  }
  return assert.fail('it was accepted')
}

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

  it('is the shipped default when no file is named, and that spells out the defaults of the schema', () => {
    assert.deepEqual(loadConfig(undefined, {}), parseConfig({}))
  })

  it('takes the file CIDGATE_CONFIG names, unless one is named on the command line', () => {
    const archive = new URL('archive.yaml', casesFolder).pathname
    assert.deepEqual(loadConfig(undefined, { CIDGATE_CONFIG: archive }).retrieval.upstreams, [])
    assert.notDeepEqual(
      loadConfig(new URL('empty.yaml', casesFolder).pathname, { CIDGATE_CONFIG: archive }).retrieval.upstreams,
      [],
    )
  })

  it('says so when the file cannot be read', () => {
    assert.deepEqual(
      errorsOf(() => loadConfig('/nowhere/cidgate.yaml', {})),
      ['config: /nowhere/cidgate.yaml: cannot be read: ENOENT (expected a file)'],
    )
  })

  it('reads a secret from a file, without the newline an editor leaves', () => {
    const folder = mkdtempSync(join(tmpdir(), 'cidgate-'))
    try {
      const secret = join(folder, 'token')
      writeFileSync(secret, 's3cret\n')
      const config = parseConfig({ upload: { auth: { tokens: [`\${file:${secret}}`] } } })
      assert.deepEqual(config.upload.auth, { tokens: ['s3cret'] })
      writeFileSync(secret, '\n')
      assert.deepEqual(
        errorsOf(() => parseConfig({ upload: { auth: { tokens: [`\${file:${secret}}`] } } })),
        [`config: upload.auth.tokens[0]: ${secret} is empty (expected a secret in it)`],
      )
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  it('has a schema for editors that is up to date (npm run schema)', () => {
    assert.equal(readFileSync(shipped('config/schema.json'), 'utf8'), jsonSchema())
  })

  it('has a page of every option that is up to date (npm run schema)', () => {
    assert.equal(readFileSync(new URL('../../docs/configuration.md', import.meta.url), 'utf8'), reference())
  })

  it('describes every option', () => {
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

  const examples = readdirSync(shipped('config/examples/'))
  for (const file of examples) {
    it(`accepts the example ${file}`, () => {
      const path = shipped(`config/examples/${file}`)
      // An example names secrets of its reader: here they are all set.
      const names = [...readFileSync(path, 'utf8').matchAll(/(?<!\$)\$\{(\w+)\}/g)].map(([, name = '']) => name)
      const values = names.map((name) => [name, name.endsWith('_URL') ? 'redis://:secret@redis.example.org' : 'secret'])
      assert.ok(loadConfig(path.pathname, Object.fromEntries(values)))
    })
  }
})

describe('the options of a backend', () => {
  it('are never those that the list keeps for itself, or they would be undefined when it runs', () => {
    const kinds = (shape: z.ZodRawShape) => ({ one: { use: 'one', options: z.strictObject(shape) } })
    for (const key of ['use', 'name']) assert.throws(() => entries(kinds({ [key]: z.string() })), /one .+ its own: /)
    assert.throws(() => entriesWith(kinds({ perMinute: z.int() }), { perMinute: z.int() }), /perMinute/)
    assert.ok(entries(kinds({ uploadName: z.string() })))
  })
})
