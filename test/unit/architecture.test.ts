// The house rules that a reader cannot see being broken: who imports whom, what a module may not do, and that every
// backend is registered. Read from the import lines of the sources, and nothing is taken on trust.
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../../', import.meta.url))
const sources = ['src', 'backends'].flatMap((folder) =>
  readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts'))
    .map((file) => join(folder, file)),
)

type Import = { readonly from: string; readonly to: string; readonly isType: boolean }

const textOf = (file: string): string => readFileSync(join(root, file), 'utf8')

function importsOf(from: string): Import[] {
  const statement =
    /^(?:import|export)\s+(type\s+)?(?:[^'"`;]*?\sfrom\s+)?['"]([^'"]+)['"]|\bimport\(\s*['"]([^'"]+)['"]\s*\)/gm
  return [...textOf(from).matchAll(statement)].map(([, type, fixed, lazy]) => {
    const to = fixed ?? lazy ?? ''
    return { from, to: to.startsWith('.') ? normalize(join(dirname(from), to)) : to, isType: type !== undefined }
  })
}

const imports = sources.flatMap(importsOf)
const isOurs = (path: string): boolean => path.startsWith('src/') || path.startsWith('backends/')
/** The leaves: what everybody may use, and what uses nothing but its own. */
const isCore = (path: string): boolean => path.startsWith('src/core/')
const isContract = (path: string): boolean => /^backends\/[^/]+\/contract\.ts$/.test(path)
const isRegistry = (path: string): boolean => /^backends\/[^/]+\/index\.ts$/.test(path)
/** `backends/tiers/s3.ts` is of the kind `backends/tiers`. */
const kindOf = (path: string): string => path.split('/').slice(0, 2).join('/')
const areaOf = (path: string): string => /^src\/([^/]+)\//.exec(path)?.[1] ?? path

/** Area → the areas it may import, besides its own and `core`. */
const mayImport: Readonly<Record<string, readonly string[]>> = {
  core: [],
  observe: [],
  config: [],
  deny: [],
  announce: ['store'],
  routing: ['observe'],
  'data-folder': ['store'],
  store: ['ipld'],
  ipld: [],
  retrieval: ['ipld', 'observe'],
  content: ['ipld', 'retrieval'],
  names: ['content', 'observe', 'retrieval', 'store'],
  web: ['content', 'ipld', 'retrieval'],
  upload: ['content', 'data-folder', 'ipld', 'retrieval', 'store'],
  schemas: ['content', 'upload'],
  http: ['announce', 'content', 'ipld', 'names', 'observe', 'retrieval', 'schemas', 'upload', 'web'],
  admin: ['names', 'observe', 'retrieval', 'store', 'upload', 'web'],
  team: ['http'],
  wiring: [
    ...['admin', 'announce', 'config', 'content', 'data-folder', 'deny', 'http', 'ipld', 'names', 'observe'],
    ...['retrieval', 'routing', 'schemas', 'store', 'team', 'upload'],
  ],
  library: [
    ...['config', 'content', 'data-folder', 'http', 'names', 'observe', 'retrieval'],
    ...['schemas', 'store', 'team', 'upload', 'web', 'wiring'],
  ],
  testing: ['ipld', 'upload'],
  server: ['config', 'data-folder', 'http', 'team', 'wiring'],
  cli: ['admin', 'announce', 'config', 'data-folder', 'deny', 'routing', 'server', 'store', 'team', 'upload', 'wiring'],
}

const broken = (rule: (one: Import) => boolean): string[] =>
  imports.filter(rule).map(({ from, to }) => `${from} imports ${to}`)

describe('architecture', () => {
  it('import finder → finds the imports it checks', () => {
    assert.ok(imports.length > 50)
    assert.ok(imports.some(({ from, to }) => from === 'src/retrieval/session.ts' && isContract(to)))
  })

  it('dependencies are imports and their types only', () => {
    const { dependencies } = JSON.parse(textOf('package.json')) as { dependencies: Record<string, string> }
    const imported = imports
      .filter(({ to }) => !isOurs(to) && !/^(node|file|data):|^\.|^$|^cidgate\//.test(to))
      .map(({ to }) => /^(@[^/]+\/)?[^/]+/.exec(to)?.[0] ?? to)
    const named = Object.keys(dependencies).filter((name) => !imported.includes(name.replace(/^@types\//, '')))
    assert.deepEqual(
      { isNotNamed: imported.filter((name) => !(name in dependencies)), isNotUsed: named },
      { isNotNamed: [], isNotUsed: [] },
    )
  })

  it('core imports only core', () => {
    assert.deepEqual(
      broken(({ from, to }) => isCore(from) && isOurs(to) && !isCore(to)),
      [],
    )
  })

  it('contracts import only core', () => {
    assert.deepEqual(
      broken(({ from, to }) => isContract(from) && isOurs(to) && !isCore(to)),
      [],
    )
  })

  it('backends import only their kind and core', () => {
    const isBackend = (path: string) => path.startsWith('backends/') && !isContract(path) && !isRegistry(path)
    // The embedded provider keeps its pins in the store.
    const isStore = (from: string, to: string) => from === 'backends/pinning/embedded.ts' && areaOf(to) === 'store'
    const isAllowed = ({ from, to }: Import) =>
      !isOurs(to) || isStore(from, to) || isCore(to) || (kindOf(to) === kindOf(from) && !isRegistry(to))
    assert.deepEqual(
      broken((one) => isBackend(one.from) && !isAllowed(one)),
      [],
    )
  })

  it('imports between areas run in one direction', () => {
    const isWrong = ({ from, to }: Import) => {
      const allowed = mayImport[areaOf(from)]
      if (!from.startsWith('src/') || !isOurs(to) || isCore(to) || isContract(to)) return false
      return areaOf(to) !== areaOf(from) && !allowed?.includes(areaOf(to))
    }
    assert.deepEqual(
      broken(isWrong)
        .filter((line) => !/^src\/(config\/schema|wiring\/backends)\.ts imports backends\/\w+\/index\.ts$/.test(line))
        .filter((line) => !/^src\/gateway\.ts |^src\/cli\/\S+ imports src\/gateway\.ts$/.test(line)),
      [],
    )
  })

  it('every area is listed exactly once', () => {
    const areas = new Set(sources.filter((file) => /^src\/.+\//.test(file)).map(areaOf))
    assert.deepEqual(Object.keys(mayImport).sort(), [...areas].sort())
  })

  it('only registries name backends; only wiring and schema name registries', () => {
    const users = ['src/wiring/backends.ts', 'src/config/schema.ts']
    assert.deepEqual(
      broken(({ from, to }) => isRegistry(to) && !users.includes(from)),
      [],
    )
    assert.deepEqual(
      broken(
        ({ from, to }) =>
          to.startsWith('backends/') && !isContract(to) && !isRegistry(to) && kindOf(to) !== kindOf(from),
      ),
      [],
    )
  })

  it('every backend is registered', () => {
    for (const kind of ['tiers', 'upstreams', 'pinning', 'counters']) {
      const registry = `backends/${kind}/index.ts`
      const registered = importsOf(registry).map(({ to }) => to)
      const isBackend = (file: string) =>
        file.startsWith(`backends/${kind}/`) &&
        file !== registry &&
        /\b(Tier|Upstream|Provider|Counters)Kind\b/.test(textOf(file)) &&
        !isContract(file)
      assert.deepEqual(
        sources.filter((file) => isBackend(file) && !registered.includes(file)),
        [],
        `not in ${registry}`,
      )
    }
  })

  it('libraries are imported only by their wrapper', () => {
    const doors: Readonly<Record<string, RegExp>> = {
      express: /^src\/(http|admin|wiring)\/|^src\/gateway\.ts/,
      undici: /^(backends\/|src\/(cli\/client\/|deny\/|names\/|observe\/tracing\.ts$))/,
      zod: /^(backends|src\/config)\/|^src\/core\/units\.ts/,
      yaml: /^src\/(config|deny)\/|^src\/core\/plain-yaml\.ts/,
      '@smithy/signature-v4': /^src\/core\/wire\//,
      keyv: /^backends\//,
    }
    assert.deepEqual(
      broken(({ from, to }) => doors[to] !== undefined && !doors[to].test(from)),
      [],
    )
  })

  it('no import cycles', () => {
    const next = new Map<string, string[]>()
    for (const { from, to, isType } of imports)
      if (!isType && isOurs(to)) next.set(from, [...(next.get(from) ?? []), to])
    const done = new Set<string>()
    const visit = (file: string, path: readonly string[]): void => {
      assert.ok(!path.includes(file), `a circle: ${[...path, file].join(' → ')}`)
      if (done.has(file)) return
      for (const to of next.get(file) ?? []) visit(to, [...path, file])
      done.add(file)
    }
    for (const file of sources) visit(file, [])
  })

  it('argv, environment and exit only in the command line', () => {
    // AWS names its credentials and its region in the environment.
    const allowed = /^src\/(cli\/|config\/load\.ts|core\/wire\/s3\.ts)/
    const touching = sources.filter((file) => /\bprocess\.(argv|env|exit)\b/.test(textOf(file)) && !allowed.test(file))
    assert.deepEqual(touching, [])
  })

  it('response statuses only in http, admin and server', () => {
    const others = sources.filter((file) => file.startsWith('src/') && !/^src\/(http|admin|server)\//.test(file))
    assert.deepEqual(
      others.filter((file) => /\bstatus: [45]\d\d\b/.test(textOf(file))),
      [],
    )
  })

  it('no default exports', () => {
    assert.deepEqual(
      sources.filter((file) => /^export default\b/m.test(textOf(file))),
      [],
    )
  })

  it("no module state except the process's folders", () => {
    // The script of a thread runs once, in a thread of its own.
    const modules = sources.filter((file) => !file.endsWith('-thread.ts'))
    assert.deepEqual(
      modules.flatMap((file) => stateIn(textOf(file)).map((name) => `${file}: ${name}`)),
      ['src/data-folder/folder.ts: processFolders'],
    )
  })

  it('every file begins with a header comment', () => {
    assert.deepEqual(
      sources.filter((file) => !/^(#!.*\n)?(\/\/|\/\*)/.test(textOf(file))),
      [],
    )
  })
})

/** Names of what a module could change while it runs. The sources are formatted: what is at the margin is the module's. */
function stateIn(text: string): string[] {
  const variables = [
    ...text.matchAll(/^(?:export )?(?:let|var) (\w+)|^globalThis\.(\w+) =|^ {2}static (?!readonly )(\w+)/gm),
  ]
  const constants = text.matchAll(
    /^(?:export )?const (\w+)(?:: (.+?))? = (new (\w+)\b|\[|\{|create(?!Hash)\w*\(|\(\(\) =>|\(function)/gm,
  )
  const mutable = [...constants].filter(({ index, 2: type = '', 3: made = '', 4: builtIn = '' }) => {
    const [statement = ''] = /^[^\n]*[[{(]\n.*?\n[\]})][^\n]*|^[^\n]*/s.exec(text.slice(index)) ?? []
    if (/^(readonly |Readonly)/.test(type) || / as const(?: satisfies .+)?$/.test(statement)) return false
    if (/\n\]\.(join|reduce)\(/.test(statement)) return false
    if (builtIn) return !immutable.has(builtIn)
    // A type of ours has readonly fields alone.
    return !/^[[{]/.test(made) || !/^[A-Z]\w*(<.*>)?$/.test(type) || /^(Record|Array)\b/.test(type)
  })
  return [...variables, ...mutable].flatMap((found) => found.slice(1, 4).find((name) => name !== undefined) ?? [])
}

const immutable: ReadonlySet<string> = new Set([
  'URL',
  'Intl',
  'Error',
  'Failure',
  'TextEncoder',
  'TextDecoder',
  'Uint8Array',
])
