// The command line as a shell sees it: what it prints, where, and with which exit code.
import assert from 'node:assert/strict'
import { type ChildProcessWithoutNullStreams, execFile, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough, Readable } from 'node:stream'
import { after, afterEach, before, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
// @ts-expect-error: the launcher has no types, because it runs in any Node.
import { withHeapFlags } from '../../bin/heap-flags.mjs'
import { runDoctor } from '../../src/cli/doctor-checks.ts'
import { run as dispatch } from '../../src/cli/run.ts'
import { loadConfig } from '../../src/config/load.ts'
import { shipped } from '../../src/config/package.ts'
import { selfSigned } from '../support/certificate.ts'

const program = fileURLToPath(new URL('../../bin/cidgate.mjs', import.meta.url))

type Outcome = { code: number; out: string; err: string }

const run = (...args: string[]): Promise<Outcome> =>
  new Promise((resolve) => {
    execFile(process.execPath, [program, ...args], (error, out, err) =>
      resolve({ code: error ? Number(error.code) : 0, out, err }),
    )
  })

/** What a process took of the processors: however busy the machine is with other things. Linux alone says it. */
function processorMs({ pid }: ChildProcessWithoutNullStreams): number | undefined {
  if (process.platform !== 'linux') return undefined
  const behindName = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ') ?? []
  const [user, system] = [Number(behindName[11]), Number(behindName[12])]
  return (user + system) * 10 // a tick is 10 ms
}

/** The same without a process of its own, which costs half a second: for arguments and configurations that are refused. */
async function runHere(...args: string[]): Promise<Outcome> {
  const said = { out: '', err: '' }
  const [stdout, stderr] = [new PassThrough(), new PassThrough()]
  stdout.on('data', (chunk) => {
    said.out += chunk
  })
  stderr.on('data', (chunk) => {
    said.err += chunk
  })
  const code = await dispatch(args, { stdin: Readable.from([]), stdout, stderr, environment: process.env })
  await new Promise((resolve) => setImmediate(resolve))
  return { code, ...said }
}

/** What doctor prints, without its two processes. */
async function doctorHere(file: string): Promise<Pick<Outcome, 'code' | 'out'>> {
  let out = ''
  const print = (line: string) => {
    out += `${line}\n`
  }
  return { code: await runDoctor(loadConfig(file), { print }), out }
}

describe('command line', () => {
  let folder = ''
  const children: ChildProcessWithoutNullStreams[] = []

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'cidgate-'))
  })
  afterEach(async () => {
    for (const child of children.splice(0)) {
      if (child.exitCode !== null || child.signalCode !== null) continue
      child.kill('SIGKILL')
      await once(child, 'exit')
    }
  })
  after(() => rm(folder, { recursive: true }))

  async function configFile(name: string, text: string): Promise<string> {
    const file = join(folder, name)
    await writeFile(file, text)
    return file
  }

  const hung = createServer(() => {})
  let hungFile = ''
  // It waits for ten seconds: the other tests run meanwhile.
  let doctor: Promise<Outcome> | undefined
  before(async () => {
    await once(hung.listen(0, '127.0.0.1'), 'listening')
    const url = `"http://127.0.0.1:${(hung.address() as AddressInfo).port}"`
    const fifo = join(folder, 'never.deny')
    execFileSync('mkfifo', [fifo])
    hungFile = await configFile(
      'hung.yaml',
      `${offline().replace('upstreams: []', `upstreams: [{ name: one, url: ${url}, allowPrivate: true }]`)}
denylists: ["${fifo}"]
pinning: { providers: [{ name: kubo, use: kubo, url: ${url} }] }
cache: { tiers: [{ use: s3, bucket: b, region: r, endpoint: ${url}, forcePathStyle: true, accessKeyId: a, secretAccessKey: b }] }
`,
    )
    doctor = run('doctor', hungFile)
  })
  after(() => {
    hung.closeAllConnections()
    hung.close()
  })

  const offline = () => `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: ${folder}/data
retrieval: { upstreams: [] }
limits: { shutdownTimeout: 2s }
`

  /** Starts a gateway and waits for its line. What it writes is collected. */
  async function start(file: string, onSpawn: (child: ChildProcessWithoutNullStreams) => void = () => {}) {
    const child = spawn(process.execPath, [program, '--config', file])
    children.push(child)
    onSpawn(child)
    const said = { out: '', err: '' }
    child.stderr.on('data', (chunk) => {
      said.err += chunk
    })
    const began = performance.now()
    await new Promise<void>((resolve, reject) => {
      child.stdout.on('data', (chunk) => {
        said.out += chunk
        if (said.out.includes('\n')) resolve()
      })
      child.once('exit', () => reject(new Error(`it ended: ${said.err}`)))
    })
    return {
      child,
      said,
      startMs: processorMs(child) ?? performance.now() - began,
      url: /http:\/\/[^ \n]+/.exec(said.out)?.[0] ?? '',
    }
  }

  it('doctor: checks everything once, reports failures', async () => {
    const file = await configFile(
      'doctor.yaml',
      `${offline()}pinning: { providers: [{ name: local, use: embedded }] }\ncache: { tiers: [{ use: disk, maxBytes: 1GiB }] }\n`,
    )
    const good = await doctorHere(file)
    assert.equal(good.code, 0, good.out)
    assert.deepEqual(
      good.out
        .replaceAll(/\(\d+ ms\)/g, '')
        .trimEnd()
        .split('\n')
        .map((line) => line.trimEnd())
        .sort(),
      [`ok   data ${folder}/data`, 'ok   provider local', 'ok   tier disk'],
    )
    const worse = await configFile(
      'worse.yaml',
      `${offline().replace('upstreams: []', 'upstreams: [{ name: gone, url: "http://127.0.0.1:1" }]')}`,
    )
    const bad = await doctorHere(worse)
    assert.equal(bad.code, 1)
    assert.match(bad.out, /^bad {2}upstream gone http:\/\/127\.0\.0\.1:1 \(\d+ ms\): .+ECONNREFUSED/m)
    assert.match(bad.out, /no upstream can be used/)
    const lines: string[] = []
    assert.equal(await runDoctor(loadConfig(worse), { asJson: true, print: (line) => void lines.push(line) }), 1)
    const [told] = lines.map((line) => JSON.parse(line)).filter(({ name }) => name === 'upstream gone')
    assert.equal(told.ok, false)
    assert.equal(told.at, 'http://127.0.0.1:1')
    assert.deepEqual(JSON.parse(lines.at(-1) ?? ''), { canWork: false })
    const taken = await configFile('taken', 'a file where a folder should be')
    const worst = await configFile(
      'worst.yaml',
      `${offline().replace(`${folder}/data`, `${taken}/data`)}pinning: { providers: [{ name: kubo, use: kubo, url: "http://127.0.0.1:1" }] }\ndenylists: [/nowhere.deny]\n`,
    )
    const refused = await doctorHere(worst)
    assert.equal(refused.code, 1)
    assert.match(refused.out, /^bad {2}data .+: it cannot be written to \(ENOTDIR\); check/m)
    assert.match(refused.out, /^bad {2}provider kubo http:\/\/127\.0\.0\.1:1 \(\d+ ms\): .+ECONNREFUSED/m)
    assert.match(refused.out, /^bad {2}denylists\[0\] \/nowhere\.deny .+: .*ENOENT/m)
    assert.match(refused.out, /then run doctor again\n$/)
  })

  it('doctor, unreachable store → cause is named', async () => {
    const { cert, key } = selfSigned('localhost', new Date(Date.now() - 1000), new Date(Date.now() + 600_000))
    const untrusted = createSecureServer({ cert, key })
    await once(untrusted.listen(0, '127.0.0.1'), 'listening')
    const { port } = untrusted.address() as AddressInfo
    const keys = 'bucket: b, accessKeyId: a, secretAccessKey: b'
    try {
      for (const [endpoint, code] of [
        ['http://nowhere.invalid', /ENOTFOUND|EAI_AGAIN/],
        ['http://127.0.0.1:1', /ECONNREFUSED/],
        [`https://localhost:${port}`, /DEPTH_ZERO_SELF_SIGNED_CERT/],
      ] as const) {
        const file = await configFile(
          'unreachable.yaml',
          `${offline()}pinning: { providers: [{ use: filebase, endpoint: "${endpoint}", ${keys} }] }
cache: { tiers: [{ use: s3, endpoint: "${endpoint}", region: r, forcePathStyle: true, ${keys} }] }
`,
        )
        const { out } = await doctorHere(file)
        for (const what of [/^bad {2}provider filebase.*$/m, /^bad {2}tier s3.*$/m])
          assert.match(what.exec(out)?.[0] ?? '', new RegExp(`connection failed \\((?:${code.source})\\)`), out)
      }
    } finally {
      untrusted.close()
    }
  })

  it('warning before start → preceded by a line with the pid', async () => {
    const list = await configFile('list.deny', 'version: 1\n---\n/ipfs/bafkqaaa\nmakes no sense\n')
    const file = await configFile('warns.yaml', `${offline()}denylists: ["${list}"]\n`)
    // One pipe for both, so that the order is that of a terminal.
    const child = spawn('sh', ['-c', 'exec "$0" "$@" 2>&1', process.execPath, program, 'serve', '--config', file])
    children.push(child)
    let out = ''
    for await (const piece of child.stdout) {
      out += piece
      if (/^cidgate \(pid/m.test(out)) break
    }
    assert.match(out, /"level":"warn"/)
    assert.match(out.split('\n')[0] ?? '', new RegExp(`"event":"server.starting","pid":${child.pid}`))
  })

  const questions: { args: string[]; code: number; out?: RegExp; err?: RegExp; as?: typeof runHere }[] = [
    { args: ['--help'], code: 0, out: /^cidgate: .+\n\n {2}cidgate serve/, as: runHere },
    { args: ['--version'], code: 0, out: /^\d+\.\d+\.\d+\n$/ },
    {
      args: ['serv'],
      code: 2,
      err: /^cidgate: unknown command serv; did you mean serve\? \(see cidgate --help\)\n$/,
      as: runHere,
    },
    {
      args: ['--prot', '80'],
      code: 2,
      err: /^cidgate: Unknown option '--prot' \(see cidgate --help\)\n$/,
      as: runHere,
    },
    {
      args: ['serve', 'my.yaml'],
      code: 2,
      err: /^cidgate: serve does not accept my\.yaml; name a configuration with --config/,
    },
    { args: ['check'], code: 0, out: /config\/default\.yaml: valid\n/, as: runHere },
    {
      args: ['check', '--efective'],
      code: 2,
      err: /^cidgate: Unknown option '--efective'; did you mean --effective\? \(/,
      as: runHere,
    },
    { args: ['check', '-c', 'a.yaml', 'b.yaml'], code: 2, err: /^cidgate: check accepts one file/, as: runHere },
    { args: ['check', 'a.yaml', 'b.yaml'], code: 2, err: /^cidgate: check accepts one file/, as: runHere },
    {
      args: ['check', '-c', '/nowhere.yaml'],
      code: 2,
      err: /^config: \/nowhere\.yaml: cannot be read: ENOENT/,
      as: runHere,
    },
    {
      args: ['doctor', '/nowhere.yaml'],
      code: 2,
      err: /^config: \/nowhere\.yaml: cannot be read: ENOENT/,
      as: runHere,
    },
    {
      args: ['check', '/nowhere.yaml'],
      code: 2,
      err: /^config: \/nowhere\.yaml: cannot be read: ENOENT/,
      as: runHere,
    },
    {
      args: ['--config', '/nowhere.yaml'],
      code: 2,
      err: /^config: \/nowhere\.yaml: cannot be read: ENOENT/,
      as: runHere,
    },
  ]
  for (const { args, code, out, err, as = run } of questions) {
    it(`cidgate ${args.join(' ')}`, async () => {
      const outcome = await as(...args)
      assert.equal(outcome.code, code, outcome.err)
      assert.match(outcome.out, out ?? /^$/)
      assert.match(outcome.err, err ?? /^$/)
    })
  }

  it('compile cache → in its own folder', async () => {
    const { NODE_COMPILE_CACHE: _, ...env } = process.env
    const ask = `import m from 'node:module'; process.on('exit', () => console.error(m.getCompileCacheDir()))`
    const args = ['--import', `data:text/javascript,${ask}`, program, '--version']
    const err = await new Promise<string>((resolve) => {
      execFile(process.execPath, args, { env }, (_error, _out, said) => resolve(said))
    })
    assert.ok(err.startsWith(fileURLToPath(new URL('../../node_modules/.cache/cidgate/', import.meta.url))), err)
  })

  it('V8 options → for the gateway only, unless overridden', () => {
    const given = (argv: string[], more: object = {}, cores = 2): string[] | undefined =>
      withHeapFlags({ platform: 'linux', execArgv: [], argv: ['node', 'bin', ...argv], env: {}, ...more }, cores)
    const [young, heap, helpers] = ['--max-semi-space-size=8', '--initial-heap-size=96', '--v8-pool-size=1']
    assert.deepEqual(given(['serve', '-c', 'a']), ['node', young, heap, helpers, 'bin', 'serve', '-c', 'a'])
    assert.deepEqual(given([]), ['node', young, heap, helpers, 'bin'])
    for (const [cores, count] of [
      [1, 1],
      [3, 2],
      [64, 4],
    ] as const)
      assert.deepEqual(given([], {}, cores), ['node', young, heap, `--v8-pool-size=${count}`, 'bin'])
    assert.deepEqual(given(['-c', 'a'], { execArgv: ['--cpu-prof'] }), [
      ...['node', young, heap, helpers, '--cpu-prof'],
      ...['bin', '-c', 'a'],
    ])
    const own = ['--max-semi-space-size=64']
    assert.deepEqual(given(['serve'], { execArgv: own }), ['node', heap, helpers, ...own, 'bin', 'serve'])
    assert.deepEqual(given(['serve'], { env: { NODE_OPTIONS: '--max_semi_space_size=8 --v8-pool-size=4' } }), [
      ...['node', heap],
      ...['bin', 'serve'],
    ])
    for (const argv of [['check'], ['--version'], ['serve', '--help']]) assert.equal(given(argv), undefined)
    assert.equal(given(['serve'], { execArgv: [young, heap, helpers] }), undefined)
    assert.equal(given(['serve'], { platform: 'win32' }), undefined)
  })

  it('check --effective: every value with source, no secrets', async () => {
    const said = `listen: 127.0.0.1:0
retrieval: { timeout: 9s, upstreams: [{ url: "https://user:hush@one.example?key=hush" }] }
upload: { auth: { tokens: [hush-hush-hush-hush, { name: ci, token: hush-hush-hush-hush, expires: 2027-01-31, quota: { uploads: 7 } }] } }
`
    const file = await configFile('effective.yaml', said.replace('user:hush@', ''))
    const { code, out } = await runHere('check', file, '--effective')
    assert.equal(code, 0)
    assert.match(out, new RegExp(`^retrieval\\.timeout = "9s" +# ${file}:2:14$`, 'm'))
    assert.match(out, /^retrieval\.probeEvery = 600000 +# default$/m)
    assert.match(out, new RegExp(`^upload\\.auth\\.tokens\\[0\\] = \\*\\*\\* +# ${file}:3:`, 'm'))
    assert.match(out, /^upload\.auth\.tokens\[1\]\.name = "ci" +#/m)
    assert.match(out, /^upload\.auth\.tokens\[1\]\.quota\.uploads = 7 +#/m)
    assert.match(out, /^upload\.auth\.tokens\[1\]\.expires = "2027-01-31" +#/m)
    assert.match(out, /^upload\.auth\.tokens\[1\]\.token = \*\*\* +#/m)
    assert.doesNotMatch(out, /hush/)
  })
  it('check --effective: placeholders shown, other parts masked', async () => {
    const secret = join(folder, 'secret')
    await writeFile(secret, 'hush-hush-hush-hush')
    const file = await configFile(
      'taken.yaml',
      `cache:
  tiers:
    - { use: redis, name: one, url: "redis://user:hush@\${file:${secret}}:6379/0" }
    - { use: redis, name: two, url: "redis://user:\${file:${secret}}@redis.example" }
retrieval:
  upstreams:
    - { url: "https://one.example?key=hush\${file:${secret}}", headers: { authorization: "Bearer \${file:${secret}}" } }
    - { url: "https://two.example", headers: { x-key: "hush-\${file:${secret}}-hush" } }
upload: { auth: { tokens: ["$\${hush-hush-hush-hush}"] } }
`,
    )
    const { code, out } = await runHere('check', file, '--effective')
    assert.equal(code, 0, out)
    const shown = (key: string): string =>
      new RegExp(`^${key.replaceAll(/[[\].]/g, '\\$&')} = (.*?) +#`, 'm').exec(out)?.[1] ?? out
    const taken = `\${file:${secret}}`
    assert.equal(shown('cache.tiers[0].url'), `"redis://***@${taken}:6379/0"`)
    assert.equal(shown('cache.tiers[1].url'), `"redis://***${taken}@redis.example"`)
    assert.equal(shown('retrieval.upstreams[0].url'), `"https://one.example?***${taken}"`)
    assert.equal(shown('retrieval.upstreams[0].headers.authorization'), `"Bearer ${taken}"`)
    assert.equal(shown('retrieval.upstreams[1].headers.x-key'), `"***${taken}***"`)
    assert.equal(shown('upload.auth.tokens[0]'), '***')
    assert.doesNotMatch(out, /hush/)
  })

  it('check --json: mistakes with key and position, or effective values', async () => {
    const bad = await configFile('bad.json.yaml', 'retreival: {}\n')
    const { code, out } = await runHere('check', bad, '--json')
    assert.equal(code, 2)
    const { isValid, mistakes } = JSON.parse(out)
    assert.equal(isValid, false)
    assert.deepEqual(
      mistakes.map(({ key, position }: { key: string; position: string }) => [key, position]),
      [['retreival', `${bad}:1:1`]],
    )
    const good = await configFile('good.json.yaml', 'limits: { headersTimeout: 9s }\n')
    assert.deepEqual(JSON.parse((await runHere('check', good, '--json')).out), { file: good, isValid: true, notes: [] })
    const values = (await runHere('check', good, '--json', '--effective')).out.trimEnd().split('\n')
    const limit = values.map((line) => JSON.parse(line)).find(({ key }) => key === 'limits.headersTimeout')
    assert.deepEqual(limit, { key: 'limits.headersTimeout', value: '9s', from: `${good}:1:11` })
  })

  it('check, missing variable → other mistakes are reported too', async () => {
    const file = await configFile(
      'variable.yaml',
      `listen: nowhere
upload: { auth: { tokens: ["\${NOT_SET}", short] }, schemas: { own: { type: nothing } } }
retrieval: { timeout: 5 parsecs, upstreams: [{ url: "https://\${NOT_SET}/" }, { url: "https://\${NOT_SET}/", cat: 1 }] }
`,
    )
    const { code, err } = await runHere('check', file)
    const keys = err
      .trimEnd()
      .split('\n')
      .map((line) => /^config: (\S+): /.exec(line)?.[1])
    assert.deepEqual(
      [code, ...keys],
      [
        ...[2, 'upload.auth.tokens[0]', 'retrieval.upstreams[0].url', 'retrieval.upstreams[1].url'],
        ...['listen', 'upload.auth.tokens[1]', 'retrieval.timeout', 'retrieval.upstreams[1].cat'],
      ],
    )
    const rest = `upload: { auth: { tokens: ["\${NOT_SET}"] }, schemas: { own: { type: nothing } } }\ndenylists: [gone.deny, "\${NOT_SET}"]`
    const second = await runHere('check', await configFile('rules.yaml', `listen: ":0"\n${rest}`))
    assert.match(
      second.err,
      /tokens\[0\].*\n.*denylists\[1\].*\n.*upload\.schemas.*\n.*denylists\[0\]: cannot be read: ENOENT/,
    )
    assert.equal(second.err.split('\n').length, 5, second.err)
  })

  for (const said of [
    'hunter2',
    'https://user:hunter2@there.example/hunter2?key=hunter2',
    'sk-hunter2 ü',
    '17 hunter2',
  ])
    it(`check, ${said} at every option → value not repeated`, async () => {
      const texts = optionsWith(JSON.parse(readFileSync(shipped('config/schema.json'), 'utf8')), said)
      const outcomes = await Promise.all(
        Object.entries(texts as object).flatMap(([key, value]) =>
          [value, said, [said], [[said]], { [`${said} `]: said }].map(async (one, index) =>
            runHere('check', await configFile(`${key}-${index}.yaml`, JSON.stringify({ [key]: one }))),
          ),
        ),
      )
      assert.ok(outcomes.filter(({ code }) => code === 2).length > 60)
      for (const { out, err } of outcomes) assert.doesNotMatch(out.replaceAll(folder, '') + err, /hunter2/)
    })

  for (const line of [
    '*hunter2',
    '!hunter2',
    '!hunter2! x',
    '[hunter2',
    '"hunter2',
    '{ hunter2: 1, hunter2: 2 }',
    '@hunter2',
    '- hunter2: : x',
  ])
    it(`check, YAML broken by ${line} → line not repeated`, async () => {
      const { code, err } = await runHere('check', await configFile('unquoted.yaml', `data: x\nupload: ${line}\n`))
      assert.equal(code, 2)
      assert.doesNotMatch(err, /hunter2/)
    })

  it('check → one line a mistake, exit code 2; none, 0', async () => {
    const bad = await configFile('bad.yaml', 'retreival: {}\nlisten: 80\n')
    const outcome = await run('check', bad)
    assert.equal(outcome.code, 2)
    assert.deepEqual(
      outcome.err
        .trimEnd()
        .split('\n')
        .map((line) => line.split(': ').slice(0, 2).join(': ')),
      ['config: listen', 'config: retreival'],
    )
    assert.match(
      outcome.err,
      /^config: listen: .* \[\S+\/bad\.yaml:2:1\]\nconfig: retreival: .* \[\S+\/bad\.yaml:1:1\]\n$/,
    )
    assert.equal((await runHere('check', '--config', bad)).err, outcome.err)
    const broken = await runHere('check', await configFile('broken.yaml', 'listen: :80\nadmin: [\n'))
    assert.match(broken.err, /^config: line \d, column \d: .+ \[\S+\/broken\.yaml:\d:\d\]$/m)
    for (const [said, complaint] of [
      [
        'retrieval: { probeEvery: 30d }\n',
        /^config: retrieval\.probeEvery: "30d" is not valid \(expected at most 24d\)/,
      ],
      ['denylists: [/nowhere.deny]\n', /^config: denylists\[0\]: cannot be read: ENOENT \(expected /],
      [
        'upload: { schemas: { own: { type: nonsense } } }\n',
        /^config: upload\.schemas: the schema own is not a JSON Schema/,
      ],
    ] as const) {
      const { code, err } = await runHere('check', await configFile('odd.yaml', said))
      assert.equal(code, 2)
      assert.match(err, complaint)
    }
    assert.deepEqual(await runHere('check', await configFile('good.yaml', offline())), {
      code: 0,
      out: `${folder}/good.yaml: valid\n`,
      err: '',
    })
  })

  it('SIGHUP during start → reload after it', async () => {
    let asked = 0
    const lists = createServer((_request, response) => {
      if (++asked === 1) child?.kill('SIGHUP')
      setTimeout(() => response.end(`/ipfs/bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e\n`), 100)
    })
    await once(lists.listen(0, '127.0.0.1'), 'listening')
    let child: ChildProcessWithoutNullStreams | undefined
    try {
      const { port } = lists.address() as AddressInfo
      const text = `${offline()}denylists: ["http://127.0.0.1:${port}/a.deny"]\n`
      const { said } = await start(await configFile('starting.yaml', text), (spawned) => {
        child = spawned
      })
      for (let tries = 0; !said.err.includes('config.reloaded') && tries < 500; tries++) await sleep(10)
      assert.match(said.err, /config\.reloaded/)
    } finally {
      lists.close()
    }
  })

  it('serve: starts in 2 s, reloads, ends with 0', async () => {
    const file = await configFile('serve.yaml', offline())
    const { child, said, startMs, url } = await start(file)
    assert.match(said.out, /^cidgate \(pid \d+\): http:\/\/127\.0\.0\.1:\d+ \(admin: http:\/\/127\.0\.0\.1:\d+\)\n$/)
    assert.ok(startMs < 2000, `it took ${Math.round(startMs)} ms`)
    assert.equal((await fetch(`${url}/ipfs/nonsense`)).status, 400)
    if (process.platform === 'linux' && process.env['NODE_OPTIONS'] === undefined) {
      const line = readFileSync(`/proc/${child.pid}/cmdline`, 'utf8')
      assert.match(line, /--max-semi-space-size=8\0--initial-heap-size=96\0--v8-pool-size=[1-4]\0/)
      const environment = readFileSync(`/proc/${child.pid}/environ`, 'utf8').split('\0')
      assert.ok(environment.includes('MALLOC_ARENA_MAX=2') && environment.includes('MALLOC_TRIM_THRESHOLD_=1048576'))
    }

    await writeFile(file, 'listen: nowhere\n')
    await untilItSays(child, said, () => child.kill('SIGHUP'), 'config.refused')
    assert.match(said.err, /config: listen: is not valid/)
    assert.equal((await fetch(`${url}/ipfs/nonsense`)).status, 400)

    await writeFile(file, `${offline()}log: { level: info }\n`)
    await untilItSays(child, said, () => child.kill('SIGHUP'), 'config.reloaded')
    assert.equal((await fetch(`${url}/ipfs/nonsense`)).status, 400)

    const second = await configFile('second.yaml', offline().replace('127.0.0.1:0', new URL(url).host))
    const taken = await run('serve', '--config', second)
    assert.equal(taken.code, 2)
    assert.equal(
      taken.err.trimEnd().split('\n').at(-1),
      `config: listen: ${new URL(url).host} cannot be listened on: EADDRINUSE (expected an address that is free)`,
    )

    // From here on nobody reads what it says.
    const admin = /admin: (http:[^)]+)/.exec(said.out)?.[1] ?? ''
    const lost = async () => Number(/^cidgate_log_lines_lost_total (\d+)$/m.exec(await textOf(`${admin}/metrics`))?.[1])
    child.stderr.destroy()
    child.stdout.destroy()
    await writeFile(file, 'listen: nowhere\n')
    for (let tries = 0; (await lost()) < 3; tries++) {
      assert.ok(tries < 500, 'no line was lost')
      child.kill('SIGHUP')
      await sleep(20)
    }
    assert.equal((await fetch(`${url}/ipfs/nonsense`)).status, 400)
    assert.equal(child.exitCode, null)
    child.kill('SIGTERM')
    assert.deepEqual(await once(child, 'exit'), [0, null])
  })

  it('doctor, hanging disk and services → exits after all results', async () => {
    assert.ok(doctor)
    const { code, out } = await doctor
    assert.equal(code, 1)
    assert.match(out, /^ok {3}data /)
    for (const part of ['tier s3', 'denylists\\[0\\]', 'provider kubo', 'upstream one'])
      assert.match(out, new RegExp(`^bad {2}${part} \\S+ \\(\\d+ ms\\): `, 'm'))
    assert.match(out, /it did not answer within 10 s$/m)
    assert.match(out, /then run doctor again\n$/)
  })

  it('doctor killed while hanging → leaves no process', { timeout: 60_000 }, async () => {
    const asked = once(hung, 'request')
    const child = spawn(process.execPath, [program, 'doctor', hungFile])
    children.push(child)
    child.stdout.resume()
    child.stderr.resume()
    await asked
    child.kill('SIGKILL')
    // Its output is open for as long as any process of it is there.
    await once(child, 'close')
  })
})

const textOf = async (url: string): Promise<string> => (await fetch(url)).text()

async function untilItSays(
  child: ChildProcessWithoutNullStreams,
  said: { err: string },
  act: () => void,
  text: string,
) {
  act()
  while (!said.err.includes(text)) await once(child.stderr, 'data')
}

type Option = {
  readonly type?: string
  readonly enum?: unknown
  readonly const?: unknown
  readonly anyOf?: readonly Option[]
  readonly oneOf?: readonly Option[]
  readonly properties?: Record<string, Option>
  readonly items?: Option
  readonly additionalProperties?: Option | boolean
}

const branchesOf = (option: Option): readonly Option[] => [option, ...(option.anyOf ?? []), ...(option.oneOf ?? [])]

/** A configuration with this text at every option. Undefined: the option takes one of a few words, which are no secrets. */
function optionsWith(option: Option, said: string): unknown {
  const branches = branchesOf(option)
  const list = branches.find(({ items }) => items)?.items
  if (list) return branchesOf(list).flatMap((one) => optionsWith(one, said) ?? [])
  const mapping = branches.find(({ properties }) => properties)?.properties
  if (mapping)
    return Object.fromEntries(
      Object.entries(mapping).map(([key, one]) => [key, key === 'use' ? one.const : optionsWith(one, said)]),
    )
  const { additionalProperties: any } = option
  if (typeof any === 'object') return { one: optionsWith(any, said) }
  return branches.some((one) => one.enum ?? one.const) ? undefined : said
}
