// Every example of docs/library.md in an application of its own, made in an empty folder from the packed package: Express 5
// and 4, ESM and CommonJS, run and compiled against as a strict program would.
import assert from 'node:assert/strict'
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
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
const page = readFileSync(join(root, 'docs/library.md'), 'utf8')
const examples = [...page.matchAll(/^```(js|ts)\n([\s\S]*?)^```$/gm)].map(([, language = '', code = '']) => ({
  language,
  code,
}))
const sources = (language: string) => examples.filter((one) => one.language === language).map(({ code }) => code)
/** The one that has this in it. */
const example = (language: string, part: string): string =>
  sources(language).find((code) => code.includes(part)) ?? assert.fail(`no example has ${part}`)

const asCommonJs = (code: string): string => {
  const required = code.replace(/^import (\w+|\{[^}]*\}) from ('[^']+')$/gm, 'const $1 = require($2)')
  assert.doesNotMatch(required, /^import /m)
  return `(async () => {\n${required}\n})()\n`
}

/** A test in a process of its own, and no part of this one. */
const { NODE_TEST_CONTEXT: _, ...env } = process.env

/** Examples listen where their readers would; here each gets a free port, and says which. */
const ports = `import { Server } from 'node:net'
const listen = Server.prototype.listen
Server.prototype.listen = function (port) {
  this.once('listening', () => console.log('PORT ' + port + ' ' + this.address().port))
  return listen.call(this, 0, '127.0.0.1')
}`

type Running = { readonly child: ChildProcess; at(port: number): Promise<string> }

async function run(folder: string, file: string): Promise<Running> {
  const child = spawn(process.execPath, ['--import', './ports.mjs', file], {
    cwd: folder,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const found = new Map<string, PromiseWithResolvers<string>>()
  const of = (port: string) => {
    const known = found.get(port) ?? Promise.withResolvers<string>()
    found.set(port, known)
    return known
  }
  createInterface({ input: child.stdout }).on('line', (line) => {
    const [, port, real] = /^PORT (\d+) (\d+)$/.exec(line) ?? []
    if (port) of(port).resolve(`http://127.0.0.1:${real}`)
  })
  const ended = once(child, 'exit').then(([code]) => Promise.reject(new Error(`${file} ended with ${code}`)))
  ended.catch(() => {})
  return { child, at: (port) => Promise.race([of(String(port)).promise, ended]) }
}

async function stop({ child }: Running, signal: NodeJS.Signals): Promise<number | null> {
  if (child.exitCode !== null) return child.exitCode
  const exit = once(child, 'exit')
  child.kill(signal)
  const [code] = await exit
  return code
}

const get = async (url: string) => {
  const response = await fetch(url, { headers: { connection: 'close' } })
  return { status: response.status, body: await response.text() }
}
const hi = '/ipfs/bafkqaatine'

let packed: string
let tarball: string
before(async () => {
  packed = await mkdtemp(join(tmpdir(), 'cidgate-library-'))
  await execute('npm', ['pack', '--silent', '--pack-destination', packed], { cwd: root })
  const [file = ''] = (await readdir(packed)).filter((name) => name.endsWith('.tgz'))
  tarball = join(packed, file)
})
after(() => rm(packed, { recursive: true }))

for (const major of [5, 4]) {
  describe(`application with Express ${major}`, { timeout: 300_000 }, () => {
    let folder: string
    before(async () => {
      folder = join(packed, `express-${major}`)
      await mkdir(folder)
      await writeFile(join(folder, 'package.json'), '{ "name": "consumer", "private": true, "type": "module" }')
      const wanted = [tarball, `express@${major}`, `@types/express@${major}`]
      await execute('npm', ['install', '--prefer-offline', '--no-audit', '--no-fund', ...wanted], { cwd: folder })
      // No host outside this machine is asked.
      const upstreams = join(folder, 'node_modules/cidgate/config/upstreams.yaml')
      await writeFile(
        upstreams,
        '{ reviewed: 2026-01-01, upstreams: [{ name: nowhere, url: "http://127.0.0.1:1" }], routers: [] }\n',
      )
      await writeFile(join(folder, 'ports.mjs'), ports)
      assert.ok(examples.length >= 6)
    })

    for (const [kind, ending, made] of [
      ['ESM', 'mjs', (code: string) => code],
      ['CommonJS', 'cjs', asCommonJs],
    ] as const) {
      it(`router in ${kind} → mounted`, async () => {
        const file = `mounted.${ending}`
        await writeFile(join(folder, file), made(example('js', 'app.use(gateway.router)')))
        const running = await run(folder, file)
        try {
          const url = await running.at(8080)
          assert.deepEqual(await get(`${url}/`), { status: 200, body: 'mine' })
          assert.deepEqual(await get(url + hi), { status: 200, body: 'hi' })
          assert.equal((await get(`${url}/nothing`)).status, 404)
        } finally {
          await stop(running, 'SIGKILL')
        }
      })

      it(`${kind}: serves by itself, stops on SIGTERM`, async () => {
        const file = `served.${ending}`
        await writeFile(join(folder, file), made(example('js', 'gateway.handler')))
        const running = await run(folder, file)
        try {
          const [url, admin] = [await running.at(8080), await running.at(8081)]
          assert.deepEqual(await get(url + hi), { status: 200, body: 'hi' })
          assert.match((await get(`${url}/nothing`)).body, /"status":404/)
          assert.equal((await get(`${admin}/healthz`)).status, 200)
        } finally {
          assert.equal(await stop(running, 'SIGTERM'), 0)
        }
      })

      it(`${kind}: router below a path → other paths untouched`, async () => {
        const file = `below.${ending}`
        const code = `import express from 'express'
import { createGateway } from 'cidgate'
const gateway = createGateway({ data: './data', retrieval: { upstreams: [] } })
const app = express()
app.use('/gw', gateway.router)
app.use((request, response) => response.status(404).send('not ours'))
app.listen(8080)
await gateway.start()
`
        await writeFile(join(folder, file), made(code))
        const running = await run(folder, file)
        try {
          const url = await running.at(8080)
          assert.deepEqual(await get(`${url}/gw${hi}`), { status: 200, body: 'hi' })
          assert.deepEqual(await get(url + hi), { status: 404, body: 'not ours' })
          assert.deepEqual(await get(`${url}/gw/other`), { status: 404, body: 'not ours' })
          const head = await fetch(`${url}/gw/other`, { method: 'HEAD' })
          assert.deepEqual([head.status, head.headers.get('x-request-id')], [404, null])
          const body = new FormData()
          body.set('data', 'hello')
          const added = await fetch(`${url}/gw/add`, { method: 'POST', body })
          assert.equal(added.status, 200)
        } finally {
          await stop(running, 'SIGKILL')
        }
      })
    }

    for (const [index, code] of sources('ts').entries())
      it(`example ${index + 1} in TypeScript → runs`, async () => {
        await writeFile(join(folder, `example-${index}.ts`), code)
        const { stdout, stderr } = await execute(process.execPath, [`example-${index}.ts`], { cwd: folder, env })
        if (code.includes('tierContract')) assert.match(stdout, /pass [1-9]\d*\n[\s\S]*fail 0\n/)
        if (!code.includes('gateway.get')) return
        assert.match(stdout, /^bafk\w+: application\/json, 20 bytes\n/)
        assert.match(stderr, /^path-not-found no link named "nothing"/m)
        assert.equal(await readFile(join(folder, 'policy.json'), 'utf8'), '{"title":"a policy"}')
      })

    for (const [how, ...options] of [
      ['nodenext', '--module', 'nodenext'],
      ['nodenext, exact', '--module', 'nodenext', '--exactOptionalPropertyTypes'],
      ['bundler', '--module', 'esnext', '--moduleResolution', 'bundler'],
      ['bundler, exact', '--module', 'esnext', '--moduleResolution', 'bundler', '--exactOptionalPropertyTypes'],
    ])
      it(`every example, strict: ${how} → compiles`, async () => {
        const files = await Promise.all(
          examples.map(async ({ code }, index) => {
            await writeFile(join(folder, `compiled-${index}.ts`), code)
            return `compiled-${index}.ts`
          }),
        )
        const strict = ['--noEmit', '--strict', '--target', 'es2024', '--esModuleInterop', '--types', 'node']
        await execute(process.execPath, [compiler, ...strict, ...options, ...files], { cwd: folder }).catch((error) =>
          assert.fail(error.stdout),
        )
      })

    it('CommonJS → compiles; mistakes → type errors', async () => {
      const right = `import express = require('express')
import { createGateway } from 'cidgate'
express().use(createGateway({ data: './data' }).router)
`
      const wrong = `import { createGateway } from 'cidgate'
createGateway({ cache: { tiers: [{ use: 'dsk' }] } })
createGateway({}, { tiers: [{ name: 'mine' }] })
`
      await writeFile(join(folder, 'right.cts'), right)
      await writeFile(join(folder, 'wrong.ts'), wrong)
      const check = (file: string) =>
        execute(process.execPath, [compiler, '--noEmit', '--strict', '--module', 'nodenext', '--types', 'node', file], {
          cwd: folder,
        })
      await check('right.cts')
      await assert.rejects(check('wrong.ts'), (error: Error & { stdout?: string }) => {
        assert.match(error.stdout ?? '', /^wrong\.ts\(2,/m)
        assert.match(error.stdout ?? '', /^wrong\.ts\(3,/m)
        return true
      })
    })
  })
}
