// What deploy/ ships, run: the steps of the image without a builder of images, and two instances behind nginx with a bucket, a
// Redis and a Kubo between them. Of the files only addresses, folders and secrets are replaced. The manifests are checked
// against the definitions of the clusters that read them.
import assert from 'node:assert/strict'
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cp, mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { parse, parseAllDocuments } from 'yaml'
import { multipart, post } from '../support/adding.ts'
import { noise } from '../support/fixtures.ts'
import { fetchAll } from '../support/gateway.ts'
import { steadily } from '../support/traffic.ts'
import { faultsOf, type Manifest } from './support/kubernetes.ts'
import { type Kubo, startKubo } from './support/kubo.ts'
import { freePort, run, tempFolder } from './support/processes.ts'
import { startRedis, startS3 } from './support/stores.ts'

const execute = promisify(execFile)
const root = fileURLToPath(new URL('../../', import.meta.url))
const shipped = (file: string): Promise<string> => readFile(join(root, 'deploy', file), 'utf8')

const closing: (() => unknown)[] = []
after(async () => {
  for (const close of closing.toReversed()) await close()
})

async function folder(): Promise<string> {
  const { path, remove } = await tempFolder()
  closing.push(remove)
  return path
}

type Instance = { readonly url: string; readonly process: ChildProcess }

/** Until it prints where it answers. */
async function startInstance(args: readonly string[], cwd: string, env: NodeJS.ProcessEnv): Promise<Instance> {
  const child = spawn(process.execPath, args, { cwd, env, stdio: ['ignore', 'pipe', 'inherit'] })
  closing.push(async () => {
    if (child.exitCode !== null || child.signalCode !== null) return
    const ended = once(child, 'exit')
    child.kill('SIGKILL')
    await ended
  })
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string]
  return { url: /http:\/\/[^\s/]+/.exec(line)?.[0] ?? assert.fail(line), process: child }
}

describe('deploy/Dockerfile, step by step', { timeout: 180_000 }, () => {
  test('image → starts, keeps an upload, passes its health check', async () => {
    const text = await shipped('Dockerfile')
    const at = await folder()
    const allowed = (await readFile(join(root, '.dockerignore'), 'utf8')).match(/^!.*/gm) ?? []
    for (const one of allowed.filter((name) => !name.includes('*')))
      await cp(join(root, one.slice(1)), join(at, one.slice(1)), { recursive: true })
    const [, install = ''] = /^RUN (npm ci .*)$/m.exec(text) ?? []
    const [npm = '', ...args] = install.split(' ')
    await execute(npm, args, { cwd: at })

    const [adminPort, data] = [await freePort(), await folder()]
    const admin = `127.0.0.1:${adminPort}`
    const list = (name: string) => JSON.parse(new RegExp(`^${name} (.*)$`, 'm').exec(text)?.[1] ?? '') as string[]
    const [, ...entry] = list('ENTRYPOINT')
    const env = { ...process.env, CIDGATE_LISTEN: '127.0.0.1:0', CIDGATE_ADMIN: admin, CIDGATE_DATA: data }
    const instance = await startInstance([...entry, ...list('CMD')], at, env)

    const body = noise(3000, 1)
    const { status, json } = await post(`${instance.url}/add`, multipart([{ fileName: 'a', body }]))
    assert.equal(status, 200)
    assert.ok((await fetchAll(`${instance.url}${(json['cids'] as [string])[0]}`)).body.equals(body))
    const [, check = ''] = /^ {2}CMD (\[.*\])$/m.exec(text) ?? []
    const [, ...looks] = JSON.parse(check) as string[]
    await execute(process.execPath, looks, { cwd: at, env })
  })
})

describe('manifests of deploy/', { timeout: 180_000 }, () => {
  const texts = () => Promise.all(['kubernetes.yaml', 'kubernetes-monitoring.yaml'].map(shipped))
  const faultsIn = (all: readonly string[]) =>
    faultsOf(all.flatMap((text) => parseAllDocuments(text).map((one) => one.toJS() as Manifest)))

  test('fields → known to Kubernetes and its Prometheus operator', async () =>
    assert.equal(await faultsIn(await texts()), ''))

  test('misspelt, missing or mistyped field → found', async () => {
    const spoilt = [
      ['targetPort: http', 'targetport: http'],
      ['scrapeTimeout', 'scrapeTimeOut'],
      ['replicas: 2', 'replicas: two'],
      ['{ name: data, mountPath: /var/lib/cidgate }', '{ name: data }'],
      ['interval: 15s', 'interval: 15 seconds'],
    ].reduce(
      (all, [what = '', instead = '']) => {
        assert.ok(
          all.some((text) => text.includes(what)),
          what,
        )
        return all.map((text) => text.replace(what, instead))
      },
      await texts(),
    )
    const said = await faultsIn(spoilt)
    for (const one of [/targetport/, /scrapeTimeOut/, /replicas must be integer/, /required property mountPath/])
      assert.match(said, one)
    assert.match(said, /interval must match pattern/)
  })
})

describe('deploy/two-instances', { timeout: 180_000 }, () => {
  const token = 'a-token-of-32-characters-or-more!'
  const own = { authorization: `Bearer ${token}` }
  async function startBoth(kubo: Kubo): Promise<[Instance, Instance]> {
    const [redis, s3] = [await startRedis(), await startS3()]
    closing.push(redis.stop, s3.stop)
    const config = parse(await shipped('two-instances/cidgate.yaml')) as Record<string, unknown>
    const replaced = Object.entries({
      'http://kubo:5001': kubo.rpc,
      'http://kubo:8080': kubo.gateway,
      'redis://redis:6379': redis.url,
      'http://s3:7070': s3.endpoint,
      '"bucket":"cidgate"': `"bucket":"${s3.bucket}"`,
      '"0.0.0.0:8080"': '"127.0.0.1:0"',
      '"0.0.0.0:8081"': '"127.0.0.1:0"',
    }).reduce((text, [what, instead]) => {
      assert.equal(text.split(what).length, 2, `the file says ${what} once`)
      return text.replace(what, instead)
    }, JSON.stringify(config))
    const start = async () => {
      const at = await folder()
      await writeFile(join(at, 'cidgate.json'), replaced)
      return startInstance([join(root, 'bin/cidgate.mjs'), 'serve', '--config', 'cidgate.json'], at, {
        ...process.env,
        CIDGATE_DATA: join(at, 'data'),
        UPLOAD_TOKEN: token,
        S3_ACCESS_KEY_ID: s3.accessKeyId,
        S3_SECRET_ACCESS_KEY: s3.secretAccessKey,
      })
    }
    return Promise.all([start(), start()])
  }

  async function startNginx(instances: readonly Instance[]): Promise<string> {
    const [at, port] = [await folder(), await freePort()]
    let text = await shipped('two-instances/nginx.conf')
    for (const [index, name] of ['cidgate-a:8080', 'cidgate-b:8080'].entries())
      text = text.replace(`server ${name}`, `server ${new URL(instances[index]?.url ?? '').host}`)
    text = text.replace('listen 80;', `listen 127.0.0.1:${port};`)
    const kinds = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    await mkdir(join(at, 'logs'), { recursive: true })
    await writeFile(
      join(at, 'nginx.conf'),
      `${process.getuid?.() === 0 ? 'user root;' : ''}
daemon off; worker_processes 1; pid ${join(at, 'pid')}; error_log stderr warn;
events { worker_connections 1024; }
http { access_log off; ${kinds.map((kind) => `${kind}_temp_path ${join(at, kind)};`).join(' ')}
${text}}`,
    )
    const url = `http://127.0.0.1:${port}`
    const isReady = () =>
      fetch(url).then(
        () => true,
        () => false,
      )
    const server = await run({ command: 'nginx', args: ['-p', at, '-c', join(at, 'nginx.conf')], isReady })
    closing.push(server.stop)
    return url
  }

  test('upload at one → hit at the other; kill → no failure', async () => {
    const kubo = await startKubo()
    closing.push(kubo.stop)
    const both = await startBoth(kubo)
    const [a, b] = both
    const front = await startNginx(both)

    const paths: string[] = []
    for (let index = 0; index < 20; index++) {
      const body = noise(2000 + index * 20_000, 100 + index)
      const { status, body: said, json } = await post(`${a.url}/add`, multipart([{ fileName: 'a', body }]), own)
      assert.equal(status, 200, said)
      const [path] = json['cids'] as [string]
      paths.push(path)
      const read = await fetchAll(b.url + path)
      assert.equal(read.status, 200)
      assert.ok(read.body.equals(body))
      assert.match(String(read.headers['cache-status']), /cidgate; hit/)
    }

    let next = 0
    const path = () => front + paths[next++ % paths.length]
    const began = performance.now()
    const load = steadily(100, 3000, path)
    await sleep(1000)
    const killedAt = performance.now() - began
    a.process.kill('SIGKILL')
    const outcomes = await load
    assert.equal(outcomes.length, 300)
    const cut = outcomes.filter(({ status }) => status !== 200)
    assert.ok(
      cut.every(({ at }) => at < killedAt),
      `killed after ${killedAt} ms: ${JSON.stringify(cut.map(({ at, status }) => [at, status]))}`,
    )
    const body = noise(5000, 7)
    const uploads = await Promise.all(
      Array.from({ length: 4 }, () => post(`${front}/add`, multipart([{ fileName: 'a', body }]), own)),
    )
    assert.deepEqual(
      uploads.map(({ status }) => status),
      [200, 200, 200, 200],
    )
  })
})
