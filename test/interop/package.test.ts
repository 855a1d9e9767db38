// The package as a user gets it: packed, installed in an empty folder, run, imported, and compiled against.
import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const execute = promisify(execFile)
const root = fileURLToPath(new URL('../../', import.meta.url))
const compiler = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin/tsc')

describe('npm package', { timeout: 180_000 }, () => {
  let folder = ''
  let tarball = ''
  const inFolder = (command: string, ...args: string[]) => execute(command, args, { cwd: folder })

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'cidgate-package-'))
    await execute('npm', ['pack', '--silent', '--pack-destination', folder], { cwd: root })
    const packed = (await readdir(folder)).filter((file) => file.endsWith('.tgz'))
    tarball = packed[0] ?? ''
    await writeFile(join(folder, 'package.json'), '{ "name": "consumer", "private": true, "type": "module" }')
    await inFolder('npm', 'install', '--prefer-offline', '--no-audit', '--no-fund', `./${tarball}`)
  })
  after(() => rm(folder, { recursive: true }))

  it('npx cidgate → serves', async () => {
    const { stdout } = await inFolder('npx', '--no-install', 'cidgate', '--help')
    assert.match(stdout, /^cidgate: one HTTP address/)
  })

  it('empty folder, Node 22 → npx cidgate answers within a minute', async () => {
    const { stdout } = await execute('npm', [
      ...['exec', '--yes', '--package=node@22.23', '--', 'node', '-p', 'process.execPath'],
    ])
    const env = { ...process.env, PATH: `${dirname(stdout.trim())}:${process.env['PATH']}` }
    const empty = await mkdtemp(join(tmpdir(), 'cidgate-empty-'))
    const at = { cwd: empty, env: { ...env, CIDGATE_LISTEN: '127.0.0.1:0', CIDGATE_ADMIN: '127.0.0.1:0' } }
    const began = performance.now()
    let pid: number | undefined
    try {
      assert.match((await execute('node', ['--version'], at)).stdout, /^v22\./)
      await execute('npm', ['install', '--prefer-offline', '--no-audit', '--no-fund', join(folder, tarball)], at)
      const child = spawn('npx', ['cidgate'], { ...at, stdio: ['ignore', 'pipe', 'inherit'] })
      let url = ''
      for await (const line of createInterface(child.stdout)) {
        const [, ownPid, ownUrl = ''] = /\(pid (\d+)\): (http:\S+)/.exec(line) ?? []
        if (!ownPid) continue
        ;[pid, url] = [Number(ownPid), ownUrl]
        break
      }
      const added = await execute('curl', ['-sSf', '-F', 'data=@package.json', `${url}/add`], at)
      const { cids } = JSON.parse(added.stdout) as { cids: [string] }
      const read = await execute('curl', ['-sSf', url + cids[0]], at)
      assert.equal(read.stdout, await readFile(join(empty, 'package.json'), 'utf8'))
      assert.ok(performance.now() - began < 60_000, `${performance.now() - began} ms`)
    } finally {
      if (pid) process.kill(pid, 'SIGKILL')
      await rm(empty, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
    }
  })

  it('contains its default configuration', async () => {
    const { stdout } = await inFolder(
      'npx',
      '--no-install',
      'cidgate',
      'check',
      'node_modules/cidgate/config/default.yaml',
    )
    assert.match(stdout, /: valid\n$/)
  })

  it('usable as a library', async () => {
    await writeFile(
      join(folder, 'use.mjs'),
      `import { createGateway, parseConfig } from 'cidgate'
       const config = parseConfig({ data: './data', retrieval: { upstreams: [] } })
       const gateway = createGateway(config)
       await gateway.start()
       console.log(typeof gateway.router, typeof gateway.handler)
       await gateway.close()`,
    )
    const { stdout } = await inFolder(process.execPath, 'use.mjs')
    assert.equal(stdout, 'function function\n')
  })

  it('Node too old → explained', async () => {
    await writeFile(join(folder, 'old.mjs'), `import 'cidgate'`)
    await writeFile(join(folder, 'old.cjs'), `require('cidgate')`)
    const asOldNode = `data:text/javascript,Object.defineProperty(process,'versions',{value:{...process.versions,node:'20.1.0'}})`
    for (const file of ['old.mjs', 'old.cjs'])
      await assert.rejects(
        inFolder(process.execPath, '--import', asOldNode, file),
        /Error: cidgate: Node 20\.1\.0 is too old \(expected 22\.23 or later\)/,
      )
  })

  it('contains types', async () => {
    await writeFile(
      join(folder, 'consumer.ts'),
      `import { createGateway, parseConfig } from 'cidgate'
       export const started: { start(): Promise<void>; close(): Promise<void> } = createGateway(parseConfig({}))
       // @ts-expect-error: a router is no number, and no \`any\` that would be one.
       export const router: number = createGateway({ data: './data' }).router`,
    )
    const options = ['--noEmit', '--strict', '--module', 'nodenext', '--target', 'es2024']
    await inFolder(process.execPath, compiler, ...options, 'consumer.ts')
    await writeFile(join(folder, 'wrong.ts'), `import { createGateway } from 'cidgate'\ncreateGateway(5)`)
    await assert.rejects(
      inFolder(process.execPath, compiler, ...options, 'wrong.ts'),
      (error: Error & { stdout?: string }) => /TS2345/.test(error.stdout ?? ''),
    )
  })

  it('contains no sources, tests or secrets', async () => {
    const { stdout } = await execute('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], { cwd: root })
    const [{ files }] = JSON.parse(stdout) as [{ files: { path: string }[] }]
    const expected =
      /^(bin|config|deploy|dist)\/|^docs\/[a-z-]+\.md$|^(package\.json|(README|CHANGELOG|SECURITY)\.md|LICENSE-(APACHE|MIT))$/
    assert.deepEqual(
      files.map(({ path }) => path).filter((path) => !expected.test(path)),
      [],
    )
  })
})
