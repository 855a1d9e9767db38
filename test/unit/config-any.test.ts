// Configurations that were changed in any way: each is used as it is, or refused with complaints that name what is wrong.
import assert from 'node:assert/strict'
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import fc from 'fast-check'
import { stringify } from 'yaml'
import { ConfigError, keyPath, type Path } from '../../src/config/complaints.ts'
import { type Config, loadConfig, parseConfig } from '../../src/config/load.ts'
import { anyText } from '../support/any-text.ts'
import { anyChanges, changed } from '../support/changes.ts'
import { tempFolder } from '../support/gateway.ts'
import { runs } from '../support/property.ts'
import { workMs } from '../support/work.ts'

const valid = {
  listen: '127.0.0.1:0',
  admin: '127.0.0.1:8081',
  adminAccess: { hosts: ['gate.example'], tokens: ['sixteen characters'.replaceAll(' ', '-')] },
  workers: 2,
  data: '/tmp/somewhere',
  root: 'page',
  contact: 'abuse@gate.example',
  upload: {
    maxBytes: '5MiB',
    auth: { tokens: ['another-token-of-some-length', { name: 'ci', sha256: 'a'.repeat(64), expires: '2999-01-31' }] },
    schemas: { own: { type: 'object' } },
    kuboRpc: true,
  },
  pinning: {
    minConfirmations: 1,
    timeout: '10s',
    providers: [
      { use: 'embedded', name: 'local' },
      { use: 'kubo', name: 'k', url: 'http://127.0.0.1:5001' },
    ],
  },
  retrieval: {
    timeout: '1s',
    hedgeDelay: 'auto',
    upstreams: [{ url: 'https://one.example', perMinute: 5, headers: { 'x-key': 'value' } }],
    negativeCache: { initialTtl: '1s', maxTtl: '2s' },
  },
  cache: { responses: { maxBytes: 0 }, tiers: [{ use: 'memory', maxBytes: '1MiB' }, { use: 'disk' }] },
  hosts: { 'a.example': { subdomains: true } },
  trustedProxies: ['10.0.0.0/8', '127.0.0.1'],
  names: { dns: ['9.9.9.9'], static: { 'b.example': '/ipfs/bafkqaaa' }, ttl: { min: '1s', max: '1h' } },
  responses: { types: 'web', json: { maxBytes: '1MiB' } },
  limits: { perClient: { perMinute: 7 }, headersTimeout: '5s' },
  proxy: [{ path: '/status', to: 'http://127.0.0.1:1', methods: ['GET'] }],
  denylists: ['/etc/list.deny', { url: 'https://lists.example/bad.deny', required: false }],
  log: { level: 'debug', failuresPerSecond: 'none' },
}

function refusal(load: () => Config): ConfigError | undefined {
  try {
    check(load())
    return undefined
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    assert.ok(error.mistakes.length > 0 && error.lines.every((line) => /^config: ./s.test(line)), error.message)
    return error
  }
}

/** What is used holds no number that a timer, a size or a count could not be. */
function check(value: unknown): void {
  if (typeof value === 'number') assert.ok(Number.isFinite(value) && value >= 0, String(value))
  else if (typeof value === 'object' && value !== null) for (const inner of Object.values(value)) check(inner)
}

/** Every place in the configuration. */
function placesIn(value: unknown, at: Path = []): Path[] {
  if (typeof value !== 'object' || value === null) return [at]
  const inner = Object.entries(value).map(([key, one]) => placesIn(one, [...at, Array.isArray(value) ? +key : key]))
  return [at, ...inner.flat()]
}

const names = fc.oneof(
  fc.constantFrom('__proto__', 'constructor', 'toString', '', ' ', '<<', '0', 'lisen', 'ADMIN', 'a'.repeat(5000)),
  anyText({ maxLength: 20 }),
)
const numbers = [0, -0, -1, 1.5, 1e15, 2 ** 53, 1e308, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]
const texts = [
  ...['', ' ', '0', '-1', '5s', '-5s', '1e9s', '99999999999999999999d', `${'9'.repeat(400)}KiB`, 'KiB', '1,5MiB', '٣s'],
  ...['', '{', '{}', '{NOBODY_SET_THIS}', '{file:}', '{file:/}', '{file:/dev/null}', '{file:/dev/zero}', '${'].map(
    (rest) => `$${rest}`,
  ),
  ...['\0', '\ud800'],
  ...['http://', 'http://[', 'https://a@b', 'file:///etc/passwd', 'unix:', 'unix:/a,mode=9', ':99999', '[::1]:1'],
  ...[
    '/ipfs/',
    '/ipns/..',
    '/ipfs/bafkqaaa/../..',
    '.',
    '..',
    '2999-99-99',
    '9999-12-31T23:59:59+99:99',
    'none',
    'auto',
  ],
]
const oddities: fc.Arbitrary<unknown> = fc.oneof(
  fc.constantFrom(null, true, false, ...numbers, ...texts),
  anyText({ maxLength: 30 }),
  fc.constantFrom([], {}, [[]], [{}], [null], { a: {} }, { use: 'disk' }, { use: 'nothing' }, { use: ['disk'] }),
  fc.dictionary(names, fc.constantFrom<unknown>(null, 1, 'a', [], {}), { maxKeys: 3, noNullPrototype: true }),
)
const kinds = ['instead', 'gone', 'renamed', 'beside', 'twice', 'in a list', 'in a mapping'] as const
const anyChange = fc.record({
  at: fc.constantFrom(...placesIn(valid).slice(1)),
  kind: fc.constantFrom(...kinds, 'instead', 'instead'),
  name: names,
  value: oddities,
})
type Change = typeof anyChange extends fc.Arbitrary<infer One> ? One : never

/** The same with one place changed. Keys are own ones, whatever they are called. */
function withChange(tree: unknown, { at: [key, ...rest], kind, name, value }: Change): unknown {
  const changedEntry = (own: string, inner: unknown): [string, unknown][] => {
    switch (kind) {
      case 'gone':
        return []
      case 'renamed':
        return [[name, inner]]
      case 'beside':
        return Object.entries({ [own]: inner, [name]: value })
      case 'twice':
        return [own, own].map((one) => [one, inner])
      case 'in a list':
        return [[own, [inner]]]
      case 'in a mapping':
        return [[own, { [name]: inner }]]
      default:
        return [[own, value]]
    }
  }
  const entries = Object.entries(tree as object).flatMap(([own, inner]): [string, unknown][] => {
    if (own !== String(key)) return [[own, inner]]
    return rest.length > 0 ? [[own, withChange(inner, { at: rest, kind, name, value })]] : changedEntry(own, inner)
  })
  return Array.isArray(tree) ? entries.map(([, inner]) => inner) : Object.fromEntries(entries)
}

const isIn = (key: string, place: string): boolean =>
  place !== 'the file' && `${key}.`.replaceAll('[', '.[').startsWith(`${place}.`.replaceAll('[', '.['))

/** What one place says may be wrong only beside what another says: in the same mapping, or here. */
const besideOthers: Readonly<Record<string, readonly string[]>> = {
  listen: ['admin', 'upload.auth'],
  admin: ['admin'],
}

/** Whether a complaint is about what was changed: that place, one within it or around it, or its neighbour. */
function isAbout(key: string, { at, name }: Change): boolean {
  const around = at.slice(0, -1)
  const places = [keyPath(at), keyPath([...around, name]), keyPath(around)]
  if (places.some((place) => isIn(key, place) || isIn(place, key))) return true
  return besideOthers[keyPath(at)]?.includes(key) ?? false
}

/** What YAML has for those who look for it. */
const oddLines = [
  ...[
    '---',
    '...',
    '%YAML 1.1',
    '%YAML 9.9',
    '%TAG ! tag:example,2000:',
    '\ufeff',
    '\t',
    '\0',
    '# nothing',
    '- x',
    'x',
  ],
  ...[
    '<<: *a',
    '<<: {admin: false}',
    'a: &a 1',
    'admin: *a',
    'admin: *nowhere',
    '? [admin, listen]\n: false',
    '? admin',
  ],
  ...[
    'admin: !!binary aGVsbG8=',
    'admin: !!set {a, b}',
    'admin: !own x',
    'admin: !!float .inf',
    'workers: .nan',
    'a: 0x10',
  ],
  ...[
    'admin: 2001-12-14t21:59:43.10-05:00',
    'workers: 1_000',
    'workers: 1e999',
    'workers: -0',
    'admin: yes',
    'data: ~',
  ],
  ...[
    'log: &l {level: debug, log: *l}',
    'proxy: &p [*p]',
    'data: |',
    'data: >-\n  a\n b',
    "data: 'a",
    'data: "\\x',
    '{',
    '[',
    ',',
  ],
]

describe('mutated configuration', () => {
  let folder: string
  before(async () => {
    folder = await tempFolder()
  })
  after(() => rmSync(folder, { recursive: true, force: true }))

  /** Of a file with this text. A text of a few kilobytes that took a second would be one that hangs. */
  function refusalOf(text: string | Uint8Array): ConfigError | undefined {
    const file = join(folder, 'cidgate.yaml')
    writeFileSync(file, text)
    let error: ConfigError | undefined
    const ms = workMs(() => {
      error = refusal(() => loadConfig(file, {}))
    })
    assert.ok(ms < 1000, `it took ${ms} ms`)
    return error
  }

  test('one value changed → accepted, or an error at that place', () => {
    assert.equal(
      refusal(() => parseConfig(valid)),
      undefined,
    )
    let count = 0
    fc.assert(
      fc.property(anyChange, (one) => {
        const error = refusal(() => parseConfig(withChange(valid, one)))
        if (!error) return
        count++
        const isNamed = error.mistakes.some(({ key = '' }) => isAbout(key, one))
        assert.ok(isNamed, `${keyPath(one.at)}: ${error.message}`)
      }),
      runs(100),
    )
    assert.ok(count > 25, `${count} were refused`)
  })

  test('text changed → accepted, or an error with key or line', () => {
    const { listen, admin, upload, retrieval, log } = valid
    const text = stringify({ listen, admin, upload, retrieval, log })
    assert.equal(refusalOf(text), undefined)
    const lines = text.split('\n')
    const odd = fc.tuple(fc.nat(lines.length), fc.constantFrom(...oddLines, ...lines))
    const byLine = fc
      .array(odd, { minLength: 1, maxLength: 2 })
      .map((all) => all.reduce((made, [at, line]) => made.toSpliced(at, 0, line), lines).join('\n'))
    const byByte = anyChanges(3, Buffer.from(':-{}[]&*!|>%@`"\'#,? \n\t\0\xff')).map((all) =>
      all.reduce(changed, Buffer.from(text)),
    )
    fc.assert(
      fc.property(fc.oneof<fc.Arbitrary<string | Uint8Array>[]>(byLine, byByte), (made) => {
        for (const { key, what, position } of refusalOf(made)?.mistakes ?? [])
          assert.ok((key ?? position) || what.startsWith('the file: '), what)
      }),
      runs(30),
    )
  })

  const many = 1000
  for (const [name, text] of Object.entries({
    'lists in lists': `admin: ${'['.repeat(many)}${']'.repeat(many)}`,
    'lists that do not end': `admin: ${'['.repeat(many)}`,
    'mappings in mappings': `admin: ${'{a: '.repeat(many)}1${'}'.repeat(many)}`,
    'items of items': '- '.repeat(many),
    'keys of keys': '? '.repeat(many),
    'a few keys of keys': `${'? '.repeat(60)}a`,
    'deeper lines': Array.from({ length: 300 }, (_, depth) => `${' '.repeat(depth)}a:`).join('\n'),
    'anchors of anchors': Array.from(
      { length: 12 },
      (_, at) => `k${at}: &a${at} [${`*a${at - 1}, `.repeat(at === 0 ? 0 : 4)}]`,
    ).join('\n'),
    'a mapping in itself': 'log: &log {level: *log}',
    'a long key': `${'lisen'.repeat(many)}: 1`,
    'a long text': `listen: ${'9'.repeat(many * 10)}`,
  }))
    test(`with ${name} → refused`, () => assert.ok(refusalOf(text)))

  test('nested lists from a program → refused', () => {
    let deep: unknown = []
    for (let depth = 0; depth < 100_000; depth++) deep = [deep]
    const round: Record<string, unknown> = { level: 'debug' }
    round['level'] = round
    for (const said of [{ admin: deep }, { log: round }]) assert.ok(refusal(() => parseConfig(said)))
  })
})
