// The commands that ask a running gateway, against a real one: what they print, write and end with.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { lstat, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough, Readable } from 'node:stream'
import { after, before, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { statusLines } from '../../src/cli/client/status.ts'
import { commands } from '../../src/cli/commands.ts'
import { run } from '../../src/cli/run.ts'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { type Served, startServed } from '../support/served.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
let served: Served
let folder = ''
before(async () => {
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
  served = await startServed({
    retrieval: { timeout: '2s', upstreams: [{ name: 'near', url: upstream.url }] },
    pinning: { providers: [{ name: 'local', use: 'embedded' }] },
    upload: { auth: { tokens: ['a-token-that-is-long-enough-for-this'] } },
  })
  folder = await mkdtemp(join(tmpdir(), 'cidgate-client-'))
})
after(async () => {
  await served.close()
  await upstream.close()
  await rm(folder, { recursive: true })
})
beforeEach(() => {
  upstream.fault = undefined
})

type Ended = { readonly code: number; readonly out: Buffer; readonly err: string }

type Given = { readonly stdin?: string | AsyncIterable<Uint8Array> | Readable; readonly token?: string }

async function cidgate(args: readonly string[], { stdin = '', token = '' }: Given = {}): Promise<Ended> {
  const [out, err] = [new PassThrough(), new PassThrough()]
  const chunks: Buffer[] = []
  let said = ''
  out.on('data', (chunk: Buffer) => chunks.push(chunk))
  err.on('data', (chunk: Buffer) => {
    said += chunk
  })
  const environment = {
    CIDGATE_GATEWAY: served.url,
    CIDGATE_ADMIN_URL: `http://${served.serving.admin}`,
    CIDGATE_TOKEN: token,
  }
  const code = await run(args, {
    stdin: stdin instanceof Readable ? stdin : Readable.from(typeof stdin === 'string' ? [Buffer.from(stdin)] : stdin),
    stdout: out,
    stderr: err,
    environment,
  })
  await new Promise((resolve) => setImmediate(resolve))
  return { code, out: Buffer.concat(chunks), err: said }
}
const token = 'a-token-that-is-long-enough-for-this'

describe('cidgate get', () => {
  test('CID, path or ipfs:// URL → content on standard output', async () => {
    const { cid, bytes } = all.files.hello
    for (const path of [`${cid}`, `/ipfs/${cid}`, `ipfs://${cid}`]) {
      const { code, out, err } = await cidgate(['get', path])
      assert.equal(code, 0, err)
      assert.ok(out.equals(bytes))
    }
  })

  test('output is a link → written to, not replaced', async () => {
    const { cid, bytes } = all.files.chunkedV1
    const [to, link] = [join(folder, 'target'), join(folder, 'link')]
    await writeFile(to, 'older')
    await symlink(to, link)
    assert.equal((await cidgate(['get', `${cid}`, '-o', link])).code, 0)
    assert.ok((await readFile(to)).equals(bytes))
    assert.ok((await lstat(link)).isSymbolicLink())
  })

  test('output file appears only when complete', async () => {
    const { cid, bytes } = all.files.chunkedV1
    const to = join(folder, 'whole')
    assert.equal((await cidgate(['get', `${cid}`, '-o', to])).code, 0)
    assert.ok((await readFile(to)).equals(bytes))
    const other = all.files.chunkedV0
    upstream.fault = { kind: 'stall', after: 300_000 }
    const { code, err } = await cidgate(['get', `${other.cid}`, '--output', join(folder, 'part')])
    assert.equal(code, 1)
    assert.match(err, /^cidgate: /)
    assert.deepEqual(
      (await readdir(folder)).filter((name) => name.startsWith('part')),
      [],
    )
  })

  test('--json reports the file, and requires --output', async () => {
    const { cid, bytes } = all.files.hello
    const to = join(folder, 'told')
    const { out } = await cidgate(['get', `${cid}`, '-o', to, '--json'])
    const type = 'application/octet-stream'
    assert.deepEqual(JSON.parse(out.toString()), { path: `/ipfs/${cid}`, file: to, bytes: bytes.length, type })
    const { code, err } = await cidgate(['get', `${cid}`, '--json'])
    assert.equal(code, 2)
    assert.match(err, /--json requires --output/)
  })

  test("absent path → the gateway's explanation", async () => {
    upstream.fault = { kind: 'notFound' }
    const { code, err } = await cidgate(['get', `/ipfs/${all.directory}/nothing-here`])
    assert.equal(code, 1)
    assert.match(err, /404/)
  })
})

test('cidgate export: writes a CAR that begins with its header', async () => {
  const to = join(folder, 'a.car')
  assert.equal((await cidgate(['export', `${all.files.chunkedV1.cid}`, '-o', to])).code, 0)
  const car = await readFile(to)
  assert.ok(car.length > all.files.chunkedV1.bytes.length)
  assert.match(car.subarray(0, 40).toString('latin1'), /roots/)
})

test('cidgate import: exported CAR → same CID; truncated → names missing block', async () => {
  const { cid } = all.files.chunkedV1
  const to = join(folder, 'brought.car')
  assert.equal((await cidgate(['export', `${cid}`, '-o', to])).code, 0)
  const { code, out, err } = await cidgate(['import', to], { token })
  assert.equal(code, 0, err)
  assert.equal(out.toString(), `/ipfs/${cid}  ${to}\n`)
  const said = await cidgate(['import', to, '--json'], { token })
  assert.deepEqual(JSON.parse(said.out.toString()), { name: to, path: `/ipfs/${cid}` })

  const cut = join(folder, 'cut.car')
  await writeFile(cut, (await readFile(to)).subarray(0, -10))
  const refused = await cidgate(['import', cut], { token })
  assert.equal(refused.code, 1)
  assert.match(refused.err, /cut\.car: .*(ends|cut|short)/)
  assert.equal((await cidgate(['import'])).code, 2)
  const absent = await cidgate(['import', join(folder, 'not-there.car')])
  assert.match(absent.err, /^cidgate: ENOENT: .*not-there\.car/)
  // The command of other tools for this is `add`.
  assert.match((await cidgate(['add', to], { token })).err, /brought\.car was added as the file .*cidgate import/)
})

describe('cidgate why', () => {
  test('shows the source of a response', async () => {
    const { code, out } = await cidgate(['why', `${all.files.hello.cid}`])
    assert.equal(code, 0)
    assert.match(out.toString(), /: 200 after \d+ ms\n[\s\S]*cache-status: cidgate; hit/)
  })

  test('shows upstreams, their outcomes and the request id', async () => {
    upstream.fault = { kind: 'notFound' }
    const path = `${all.files.json.cid}`
    const { code, out } = await cidgate(['why', path])
    assert.equal(code, 1)
    assert.match(out.toString(), /: 404 after[\s\S]*near: not-found, after \d+ ms[\s\S]*request /)
    const { out: json } = await cidgate(['why', path, '--json'])
    const said = JSON.parse(json.toString()) as { status: number; problem: { attempts?: object[] } }
    assert.equal(said.status, 404)
  })
})

describe('cidgate add', () => {
  test('files and standard input, token from the environment', async () => {
    const file = join(folder, 'policy.json')
    await writeFile(file, '{"a":1}')
    assert.match((await cidgate(['add', file])).err, /401/)
    const { code, out, err } = await cidgate(['add', file, '-'], { token, stdin: 'hello' })
    assert.equal(code, 0, err)
    const lines = out.toString().trim().split('\n')
    assert.match(lines[0] ?? '', /^\/ipfs\/\w+ {2}.*policy\.json$/)
    assert.match(lines[1] ?? '', /^\/ipfs\/\w+ {2}-$/)
    const [path = ''] = (lines[0] ?? '').split(' ')
    assert.equal((await cidgate(['get', path])).out.toString(), '{"a":1}')
  })

  test('terminal → progress bar', async () => {
    const file = join(folder, 'large')
    await writeFile(file, Buffer.alloc(3 * 1024 * 1024, 7))
    const err = Object.assign(new PassThrough(), { isTTY: true })
    let said = ''
    err.on('data', (chunk: Buffer) => {
      said += chunk
    })
    const environment = { CIDGATE_GATEWAY: served.url, CIDGATE_TOKEN: token }
    const io = { stdin: Readable.from([]), stdout: new PassThrough().resume(), stderr: err, environment }
    assert.equal(await run(['add', file], io), 0)
    assert.match(said, /large is being sent/)
    assert.match(said, /\[#{24}\] 100 % 3\.0 MiB of 3\.0 MiB/)
  })

  test('folder → one path for all files, without dotfiles', async () => {
    const site = join(folder, 'site')
    await mkdir(join(site, 'docs'), { recursive: true })
    await writeFile(join(site, 'index.html'), '<h1>hello</h1>')
    await writeFile(join(site, 'docs', 'a b.txt'), 'a text')
    await writeFile(join(site, '.env'), 'a secret')
    await mkdir(join(site, 'empty', 'within'), { recursive: true })
    const { code, out, err } = await cidgate(['add', site, '--json'], { token })
    assert.equal(code, 0, err)
    const { path } = JSON.parse(out.toString()) as { path: string }
    assert.equal((await cidgate(['get', `${path}/docs/a b.txt`])).out.toString(), 'a text')
    assert.equal((await cidgate(['get', `${path}/.env`])).code, 1)
    // A folder without a file is in it, as it is for `ipfs add -r`.
    assert.equal((await cidgate(['export', `${path}/empty/within`])).code, 0)
  })

  test('empty folder or symlink → refused before sending', async () => {
    const empty = join(folder, 'empty')
    await mkdir(empty)
    assert.match((await cidgate(['add', empty], { token })).err, /has nothing in it/)
    assert.match((await cidgate(['add', join(folder, 'not-there')], { token })).err, /ENOENT/)
    assert.match((await cidgate(['add', '/dev/null'], { token })).err, /neither a file nor a folder/)
  })
})

test('cidgate warm: loads listed paths into tiers, resumes after interruption', async () => {
  const [list, done] = [join(folder, 'list'), join(folder, 'done')]
  const cids = [all.files.deepV0.cid, all.files.smallV0.cid].map(String)
  await writeFile(list, `# what the front page needs\n${cids.join('\n')}\n`)
  const first = await cidgate(['warm', '--list', list, '--resume-file', done, '--json'])
  assert.equal(first.code, 0, first.err)
  assert.equal(first.out.toString().trim().split('\n').length, 2)
  upstream.fault = { kind: 'refuse' }
  const again = await cidgate(['warm', list, '--resume-file', done])
  assert.deepEqual([again.code, again.out.length], [0, 0])
  for (const cid of cids) assert.equal((await cidgate(['get', cid])).code, 0)
  // A list is a list without --list as well.
  assert.equal((await cidgate(['warm', list, '--json'])).out.toString().trim().split('\n').length, 2)
})

test('cidgate status: readiness, tier usage, upstream health', async () => {
  assert.equal((await cidgate(['get', `${all.files.hello.cid}`])).code, 0)
  upstream.fault = { kind: 'notFound' }
  const absent = 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'
  assert.equal((await cidgate(['get', absent])).code, 1)
  const { code, out, err } = await cidgate(['status'])
  assert.equal(code, 0, err)
  const said = out.toString()
  assert.match(said, /: ready; /)
  assert.match(said, /^ {2}requests since the start: \d+ \(.*4xx/m)
  assert.match(said, /^ {2}ok {2}tier memory: \S+ \S+ of \S+ MiB \(\d+ %\), \d+ % of \d+ lookups were hits/m)
  assert.match(
    said,
    /^ {2}ok {2}upstream near: ready, asked \d+, won \d+, first byte \d+ ms, p95 \d+ ms, \d+ not found/m,
  )
  assert.match(said, /^ {2}ok {2}provider local: \d+ pinned since the start, 0 wait for it/m)
  const failures = await cidgate(['status', '--failures'])
  assert.match(
    failures.out.toString(),
    new RegExp(`^\\S+Z {2}404 {2}GET /ipfs/${absent} .* request \\S+ .*\\n.*\\n {2}near: not-found`, 'm'),
  )
  const [first = ''] = (await cidgate(['status', '--failures', '--json'])).out.toString().split('\n')
  assert.equal((JSON.parse(first) as { status: number }).status, 404)
  const { out: json } = await cidgate(['status', '--json'])
  assert.equal((JSON.parse(json.toString()) as { ready: boolean }).ready, true)
})

test('cidgate status --watch: repeats until its reader closes', async () => {
  const [out, err] = [new PassThrough(), new PassThrough()]
  let said = ''
  const environment = { CIDGATE_GATEWAY: served.url, CIDGATE_ADMIN_URL: `http://${served.serving.admin}` }
  const ended = run(['status', '--watch'], { stdin: Readable.from([]), stdout: out, stderr: err, environment })
  for await (const chunk of out) {
    said += chunk
    if (/requests\/s; requests since the start/.test(said)) break
  }
  assert.equal(await ended, 0)
  assert.ok(said.split(': ready; ').length > 2)
})

test('cidgate status: alerts first, each with its next step', () => {
  const alerts = [{ severity: 'bad', part: 'tiers', what: 'Tier s3 is away', next: 'start it' }] as const
  const facts = { ready: true, draining: false, checks: [], uploads: true, alerts }
  const requests = {
    total: 0,
    inProgress: 0,
    bytesIn: 0,
    bytesOut: 0,
    byStatus: {},
    bySource: {},
    shed: 0,
    rateLimited: 0,
  }
  const [, what, next] = statusLines('here', { ...facts, requests }, 0)
  assert.deepEqual([what, next], ['  !! Tier s3 is away', '       next: start it'])
})

test('cidgate status: response cache off → not shown', () => {
  const requests = {
    total: 0,
    inProgress: 0,
    bytesIn: 0,
    bytesOut: 0,
    byStatus: {},
    bySource: {},
    shed: 0,
    rateLimited: 0,
  }
  const of = (limitBytes: number): string => {
    const responses = { bytes: 0, limitBytes, items: 0 }
    return statusLines(
      'here',
      { ready: true, draining: false, checks: [], uploads: true, requests, responses },
      0,
    ).join('\n')
  }
  assert.match(of(1024), /responses: 0 B of 1\.0 KiB \(0 %\), 0 cached/)
  assert.doesNotMatch(of(0), /responses:/)
})

test('cidgate add -: streams standard input', async () => {
  const arrived = Promise.withResolvers<boolean>()
  const standIn = createServer(async (request, response) => {
    let body = ''
    for await (const chunk of request) {
      body += String(chunk)
      if (body.includes('the first part')) arrived.resolve(true)
    }
    response.end(JSON.stringify({ cids: [`/ipfs/${body.includes('and the last') ? 'whole' : 'cut'}`] }))
  }).listen(0, '127.0.0.1')
  await once(standIn, 'listening')
  const { port } = standIn.address() as AddressInfo
  async function* stdin() {
    yield Buffer.from('the first part ')
    const late = sleep(5000, false, { ref: false })
    if (!(await Promise.race([arrived.promise, late]))) throw new Error('nothing was sent before the input ended')
    yield Buffer.from('and the last')
  }
  try {
    const { code, out, err } = await cidgate(['add', '-', '--gateway', `http://127.0.0.1:${port}`], { stdin: stdin() })
    assert.deepEqual([code, out.toString(), err.includes('nothing was sent')], [0, '/ipfs/whole  -\n', false])
  } finally {
    standIn.close()
  }
})

test('cidgate add -: refused early → exits without waiting for input', async () => {
  const standIn = createServer((request, response) => {
    request.resume()
    response.writeHead(413).end(JSON.stringify({ detail: 'too much' }))
  }).listen(0, '127.0.0.1')
  await once(standIn, 'listening')
  const { port } = standIn.address() as AddressInfo
  const stdin = new PassThrough()
  stdin.write('the first part')
  try {
    const { code, err } = await cidgate(['add', '-', '--gateway', `http://127.0.0.1:${port}`], { stdin })
    assert.deepEqual([code, err], [1, 'cidgate: -: 413: too much\n'])
    assert.equal(stdin.destroyed, true)
  } finally {
    standIn.close()
  }
})

describe('cidgate pins and deny', () => {
  const lines = (out: Buffer) =>
    out
      .toString()
      .trim()
      .split('\n')
      .filter((line) => line !== '')
  const added = async (stdin: string) => {
    const { out, err, code } = await cidgate(['add', '-', '--json'], { stdin, token })
    assert.equal(code, 0, err)
    return (JSON.parse(out.toString()) as { path: string }).path
  }

  test('pin: list, verify, sync, delete', async () => {
    const path = await added('a pin that lives for a moment')
    const cid = path.slice('/ipfs/'.length)
    const { out: text } = await cidgate(['pins'])
    assert.match(text.toString(), new RegExp(`^${cid}  29  \\S+  local pinned$`, 'm'))
    const listed = lines((await cidgate(['pins', 'ls', '--provider', 'local', '--max', '29', '--json'])).out)
    assert.ok(listed.some((line) => (JSON.parse(line) as { cid: string }).cid === cid))
    const { code, out, err } = await cidgate(['pins', 'verify'])
    assert.deepEqual([code, out.length], [0, 0], err)
    const unknown = await cidgate(['pins', 'verify', '--provider', 'kbb'])
    assert.equal(unknown.code, 1)
    assert.match(unknown.err, /kbb is not one of local, and no upload names it/)
    const [verified] = lines((await cidgate(['pins', 'verify', path, '--json'])).out)
    assert.equal((JSON.parse(verified as string) as { isWell: boolean }).isWell, true)
    const [synced] = lines((await cidgate(['pins', 'sync', cid, '--json'])).out)
    assert.deepEqual(JSON.parse(synced as string), { cid, to: [] })
    const removed = await cidgate(['pins', 'rm', cid])
    assert.deepEqual([removed.code, removed.out.toString()], [0, `${cid}  local removed\n`])
    const again = await cidgate(['pins', 'rm', cid, '--json'])
    assert.equal(again.code, 1)
    assert.match(again.out.toString(), /is not pinned/)
    assert.equal((await cidgate(['pins', 'ls', cid])).code, 1)
  })

  test('takedown is one command', async () => {
    const path = await added('what nobody may read')
    assert.equal((await cidgate(['get', path])).code, 0)
    const { code, out } = await cidgate(['deny', path, '--legal', '--reason', 'court-order'])
    assert.equal(code, 0)
    assert.match(out.toString(), /denied, local removed, 1 blocks purged/)
    const { code: refused, err } = await cidgate(['get', path])
    assert.equal(refused, 1)
    assert.match(err, /451/)
    const wrong = await cidgate(['deny', 'nonsense'])
    assert.equal(wrong.code, 1)
    assert.match(wrong.out.toString(), /nonsense {2}400: nonsense is not a CID$/m)
  })

  test('takedown, unwritable list → effect, cause and next step', async () => {
    const path = await added('what is denied while the disk is bad')
    const list = join(served.data, 'denylists', 'takedowns.deny')
    const before = await readFile(list).catch(() => undefined)
    await rm(list, { force: true })
    await mkdir(list, { recursive: true })
    const next = /denied, but in memory only.*check that disk, then repeat it/
    const { code, out } = await cidgate(['deny', path])
    assert.equal(code, 1)
    assert.match(out.toString(), /denied, local removed, 1 blocks purged; BUT 500: /)
    assert.match(out.toString(), next)
    const [json] = lines((await cidgate(['deny', path, '--json'])).out)
    const said = JSON.parse(json as string) as { isGone: boolean; error: string }
    assert.equal(said.isGone, true)
    assert.match(said.error, next)
    assert.match((await cidgate(['get', path])).err, /410/)
    await rm(list, { recursive: true })
    if (before) await writeFile(list, before)
    assert.equal((await cidgate(['deny', path])).code, 0)
  })
})

describe('wrong usage', () => {
  const wrong: readonly (readonly [args: readonly string[], said: RegExp])[] = [
    [['stat'], /unknown command stat; did you mean status\?/],
    [['frobnicate'], /unknown command frobnicate \(/],
    [['get'], /get needs one path/],
    [['get', 'a', 'b'], /get needs one path/],
    [['pins', 'lose'], /pins: unknown subcommand lose \(ls, rm, verify or sync\)/],
    [['pins', 'verfy'], /verfy.*; did you mean verify\?/],
    [['add', 'a', '--hiden'], /Unknown option '--hiden'; did you mean --hidden\?/],
    [['pins', 'rm'], /pins rm needs a CID/],
    [['deny'], /deny needs a CID/],
    [['add'], /add needs a file or a folder/],
    [['warm', 'a', '--concurrency', 'x'], /--concurrency must be a number/],
    [['get', 'a', '--gateway', 'nonsense'], /nonsense is no URL/],
    [['completion', 'tcsh'], /bash, zsh and fish/],
  ]
  for (const [args, said] of wrong)
    test(`${args.join(' ')} → exit code 2, with the expected usage`, async () => {
      const { code, err } = await cidgate(args)
      assert.equal(code, 2)
      assert.match(err, said)
    })

  test('gateway not running → named, with a hint', async () => {
    const { code, err } = await cidgate(['get', 'a', '--gateway', 'http://127.0.0.1:9'])
    assert.equal(code, 1)
    assert.match(err, /no answer from http:\/\/127\.0\.0\.1:9: .*is the gateway running/)
  })
})

test('every command has help with an example, and shell completion', async () => {
  const { out } = await cidgate(['--help'])
  for (const { name } of commands) {
    assert.ok(out.toString().includes(`cidgate ${name}`), name)
    assert.match((await cidgate([name, '--help'])).out.toString(), /\n {2}\$ .*cidgate/)
  }
  for (const shell of ['bash', 'zsh', 'fish'])
    assert.match((await cidgate(['completion', shell])).out.toString(), /warm[\s\S]*verify/)
})

test('every reporting command supports JSON', () => {
  const without = commands.filter(({ options }) => !('json' in options)).map(({ name }) => name)
  assert.deepEqual(without, ['serve', 'backup', 'completion'])
})
