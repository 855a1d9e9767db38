// What comes into the project from others: which packages run something when they are installed, and that each byte of all of them is
// named beforehand.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, test } from 'node:test'

const root = new URL('../../', import.meta.url)
const textOf = (file: string): string => readFileSync(new URL(file, root), 'utf8')

type Locked = {
  readonly version?: string
  readonly resolved?: string
  readonly integrity?: string
  readonly dev?: boolean
  readonly hasInstallScript?: boolean
}
const lockFiles = ['package-lock.json', 'test/interop/clients/package-lock.json']
const packagesOf = (file: string): [name: string, locked: Locked][] => {
  const { packages } = JSON.parse(textOf(file)) as { packages: Record<string, Locked> }
  return Object.entries(packages)
    .filter(([path]) => path !== '')
    .map(([path, locked]) => [path.slice(path.lastIndexOf('node_modules/') + 'node_modules/'.length), locked])
}

/** The rows of docs/security.md: package, lock file, what it is for. */
type Row = { readonly name: string; readonly file: string; readonly kind: string; readonly mayRun: boolean }
const rows: Row[] = [
  ...textOf('docs/security.md').matchAll(/^\| `([^`]+)` \| `([^`]*package-lock\.json)` \| (\w+) \| (yes|no)\b/gm),
].map(([, name = '', file = '', kind = '', mayRun]) => ({ name, file, kind, mayRun: mayRun === 'yes' }))

const keyOf = (name: string, file: string): string => `${name} in ${file}`

describe('packages with install scripts', () => {
  test('exactly those in docs/security.md', () => {
    const found = lockFiles.flatMap((file) =>
      packagesOf(file).flatMap(([name, { hasInstallScript }]) => (hasInstallScript ? [keyOf(name, file)] : [])),
    )
    assert.deepEqual(found.toSorted(), rows.map(({ name, file }) => keyOf(name, file)).toSorted())
  })

  test('never runtime dependencies', () => {
    const production = packagesOf('package-lock.json').filter(
      ([, { dev, hasInstallScript }]) => hasInstallScript && !dev,
    )
    assert.deepEqual(production, [])
    assert.ok(rows.every(({ kind }) => kind === 'development'))
  })

  test('allowed by package.json as the table says', () => {
    const { allowScripts } = JSON.parse(textOf('package.json')) as { allowScripts: Record<string, boolean> }
    const allowed = Object.entries(allowScripts).flatMap(([name, may]) => (may ? [name] : []))
    const told = rows.filter(({ mayRun }) => mayRun)
    assert.deepEqual(
      allowed.map((name) => keyOf(name, 'package-lock.json')),
      told.map(({ name, file }) => keyOf(name, file)),
    )
  })

  test('never run where a gateway is installed', () => {
    const installs = ['deploy/Dockerfile', 'docs/deploy.md', '.github/workflows/release.yml', '.ci/run'].flatMap(
      (file) => [...textOf(file).matchAll(/\bnpm (?:ci|install)\b[^\n]*/g)].map(([line]) => ({ file, line })),
    )
    const others = installs.filter(({ line }) => !line.includes('--ignore-scripts'))
    // The checks alone, with the very Node that the project names.
    assert.deepEqual(others, [{ file: '.ci/run', line: 'npm ci' }])
    assert.equal(installs.length, 5)
  })
})

describe('every package', () => {
  for (const file of lockFiles)
    test(`${file}: from the registry, with integrity`, () => {
      const all = packagesOf(file)
      assert.ok(all.length > 100)
      const others = all.filter(
        ([, { integrity = '', resolved, version = '' }]) =>
          !/^sha512-[\w+/]{86}==$/.test(integrity) ||
          !/^\d+\.\d+\.\d+/.test(version) ||
          (resolved !== undefined && !resolved.startsWith('https://registry.npmjs.org/')),
      )
      assert.deepEqual(others, [])
    })

  test('audited in each check run; a vulnerability fails it', () => {
    const run = textOf('.ci/run')
    assert.match(run, /^set -euo pipefail$/m)
    assert.match(run, /npm audit --omit=dev[\s\S]*exit 1/)
    assert.match(textOf('.github/workflows/ci.yml'), /- run: \.ci\/run$/m)
    assert.match(textOf('.github/workflows/release.yml'), /needs: check/)
  })
})
