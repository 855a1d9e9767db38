// What the pages show as a configuration is one, and what they point at is there.
import assert from 'node:assert/strict'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { parse } from 'yaml'
import { providerKinds } from '../../backends/pinning/index.ts'
import { parseConfig } from '../../src/config/load.ts'

const root = new URL('../../', import.meta.url)
const pages = ['README.md', ...readdirSync(new URL('docs/', root)).map((name) => `docs/${name}`)].filter((name) =>
  name.endsWith('.md'),
)
const textOf = (page: string): string => readFileSync(new URL(page, root), 'utf8')

/** YAML that is somebody else's: a compose file, a manifest, a workflow. */
const foreign = ['services', 'apiVersion', 'jobs', 'scrape_configs']

/** Every secret of the reader is set. */
const withSecrets = (block: string) =>
  Object.fromEntries([...block.matchAll(/\$\{(\w+)\}/g)].map(([, name = '']) => [name, 'a-secret-of-the-reader']))

const blocksOf = (page: string): string[] =>
  [...textOf(page).matchAll(/^```yaml\n([\s\S]*?)^```$/gm)]
    .map(([, block = '']) => block)
    .filter((block) => !foreign.some((key) => new RegExp(`^${key}:`, 'm').test(block)))

for (const page of pages) {
  describe(page, () => {
    for (const [index, block] of blocksOf(page).entries())
      test(`configuration ${index + 1} is valid`, () => {
        assert.ok(parseConfig(parse(block), withSecrets(block)))
      })

    test('every link resolves', () => {
      for (const [, target = ''] of textOf(page).matchAll(/\]\(([^)#\s]+)(?:#[^)]*)?\)/g))
        if (!/^[a-z]+:/.test(target)) assert.ok(existsSync(new URL(target, new URL(page, root))), target)
    })

    test('every named repository file exists', () => {
      const named = textOf(page).matchAll(/`((?:src|backends|test|bench|bin|scripts)\/[\w./-]+)`/g)
      assert.deepEqual(
        [...named].map(([, path = '']) => path).filter((path) => !existsSync(new URL(path, root))),
        [],
      )
    })
  })
}

test('every provider has an example configuration', () => {
  const shown = blocksOf('docs/pinning.md').map((block) => {
    const { providers } = parseConfig(parse(block), withSecrets(block)).pinning
    return providers.map(({ use }) => use)
  })
  assert.deepEqual(new Set(shown.flat()), new Set(Object.keys(providerKinds)))
})

test('docs/troubleshoot.md names existing events and commands', () => {
  const [, table = ''] = /^## At three in the morning\n([\s\S]*?)^## /m.exec(textOf('docs/troubleshoot.md')) ?? []
  const rows = table.split('\n').filter((line) => line.startsWith('| ') && !line.startsWith('| question'))
  assert.equal(rows.length, 7)
  const events = new Set(
    [...textOf('docs/monitoring.md').matchAll(/^\| `([a-z-]+\.[a-z-]+)` \|/gm)].map(([, name]) => name),
  )
  const commands = textOf('docs/command-line.md')
  for (const row of rows) {
    const named = [...row.matchAll(/`([a-z]+\.[a-z-]+)`/g)].map(([, name]) => name)
    assert.ok(named.length > 0, `${row} names no event`)
    for (const name of named) assert.ok(events.has(name), name)
    const asked = [...row.matchAll(/`npx cidgate ([a-z]+)/g)].map(([, name]) => name)
    assert.ok(asked.length > 0, `${row} names no command`)
    for (const name of asked) assert.match(commands, new RegExp(`^cidgate ${name}`, 'm'))
  }
})

test('docs/architecture.md, name of a file → in that file', () => {
  const page = textOf('docs/architecture.md')
  const inBrackets = [...page.matchAll(/`((?:src|backends)\/[\w./-]+)` \(((?:`#?\w+`(?:, )?)+)\)/g)]
  const before = [...page.matchAll(/`(#?\w+)` of `((?:src|backends)\/[\w./-]+)`/g)]
  const named = [...inBrackets.map(([, file, names]) => [file, names]), ...before.map(([, name, file]) => [file, name])]
  assert.ok(named.length >= 10)
  for (const [file = '', names = ''] of named)
    for (const name of names.replaceAll('`', '').split(', ')) assert.ok(textOf(file).includes(name), `${file} ${name}`)
})

test('pages have at most 30,000 words in total', () => {
  const texts = [...pages, 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md'].map(textOf)
  const words = texts.flatMap((text) => text.split(/\s+/)).filter((word) => /[\p{L}\p{N}]/u.test(word))
  assert.ok(words.length <= 30_000, `${words.length} words: remove as many as you add`)
})

test('decisions have at most 120 words each', () => {
  for (const record of textOf('docs/decisions.md').split(/^## /m).slice(1))
    assert.ok(record.split(/\s+/).length <= 120, record.slice(0, 60))
})

test('every quoted message exists in the sources', () => {
  const sources = ['src', 'backends'].flatMap((folder) =>
    readdirSync(new URL(`${folder}/`, root), { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.ts'))
      .map((name) => textOf(`${folder}/${name}`)),
  )
  const quoted = pages.flatMap((page) => {
    const prose = textOf(page).replace(/^```[\s\S]*?^```$|`[^`\n]*`/gm, '')
    const outcomes = page === 'docs/troubleshoot.md' ? textOf(page).matchAll(/^\| ((?:`[^`]+`(?:, )?)+) \|/gm) : []
    return [
      ...[...prose.matchAll(/["“]([A-Z][^"”\n]* [^"”\n]*)["”]/g)].map(([, text = '']) => text),
      ...[...outcomes].flatMap(([, cell = '']) => cell.replaceAll(/`|skipped-/g, '').split(', ')),
    ]
  })
  assert.ok(quoted.includes('No upstream could be reached') && quoted.includes('throttled'))
  assert.deepEqual(
    quoted.filter((text) => !sources.some((source) => source.includes(`'${text}`) || source.includes(`${text}'`))),
    [],
  )
})
