// What deploy/ ships, held against the code: files that it names are there, configurations are valid, addresses that probes
// ask for are answered. The images' steps and two real instances behind a real nginx are tried in test/interop.
import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { parse, parseAllDocuments } from 'yaml'
import { parseConfig } from '../../src/config/load.ts'
import { fetchAll } from '../support/gateway.ts'
import { startServed } from '../support/served.ts'
import { closingAfterEach } from '../support/started.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const read = (file: string): string => readFileSync(join(root, 'deploy', file), 'utf8')
const started = closingAfterEach()

type Service = {
  readonly build?: { readonly context: string; readonly dockerfile: string }
  readonly image?: string
  readonly command?: readonly string[]
  readonly environment?: Readonly<Record<string, string>>
  readonly volumes?: readonly string[]
  readonly depends_on?: readonly string[] | Readonly<Record<string, unknown>>
}
type Compose = {
  readonly services: Readonly<Record<string, Service>>
  readonly volumes: Readonly<Record<string, unknown>>
}

/** Secrets that an operator puts into the environment. */
const secrets = {
  S3_ACCESS_KEY_ID: 'an-id',
  S3_SECRET_ACCESS_KEY: 'a-secret',
  UPLOAD_TOKEN: 'a-token-of-32-characters-or-more!',
}

for (const file of ['compose.yaml', 'compose.kubo.yaml', 'two-instances/compose.yaml'])
  describe(`deploy/${file}`, () => {
    const folder = dirname(join(root, 'deploy', file))
    const { services, volumes } = parse(read(file), { merge: true }) as Compose

    for (const [name, service] of Object.entries(services))
      test(`${name} has an image, files, volumes and services that are there`, () => {
        const { build, image } = service
        assert.ok((build === undefined) !== (image === undefined), 'one of build and image')
        if (build) assert.ok(existsSync(join(folder, build.context, build.dockerfile)))
        for (const one of dependencies(service)) assert.ok(one in services)
        for (const volume of service.volumes ?? []) {
          const [from = ''] = volume.split(':')
          assert.ok(from.startsWith('.') ? existsSync(join(folder, from)) : from in volumes, volume)
        }
      })

    // A port that is published to one machine is open to every web page in a browser there.
    test('uploads need a token', () => {
      const gateways = Object.values(services).filter(({ build }) => build)
      assert.ok(gateways.length > 0)
      for (const { volumes: mounts = [], environment = {} } of gateways) {
        const mount = mounts.map((one) => one.split(':')).find(([, to]) => to?.startsWith('/etc/cidgate/'))
        const config = mount?.[0] ? parse(readFileSync(resolve(folder, mount[0]), 'utf8')) : {}
        const own = interpolated(environment)
        const { auth } = parseConfig(config, { ...own, CIDGATE_LISTEN: '0.0.0.0:8080' }).upload
        assert.deepEqual(auth, { tokens: [secrets.UPLOAD_TOKEN] })
      }
    })

    test('every configuration is valid, and names services that are there', () => {
      for (const { command = [], volumes: mounts = [], environment = {} } of Object.values(services)) {
        const target = command[command.indexOf('--config') + 1]
        if (!command.includes('--config') || target === undefined) continue
        const mount = mounts.map((one) => one.split(':')).find(([, to]) => to === target)
        assert.ok(mount?.[0], `${target} is mounted`)
        const text = readFileSync(resolve(folder, mount[0]), 'utf8')
        parseConfig(parse(text), { ...secrets, ...interpolated(environment) })
        for (const [, host] of text.matchAll(/(?:http|redis):\/\/([\w-]+):\d+/g))
          assert.ok(host && host in services, host)
      }
    })
  })

/** As compose does it. A variable that has to be set is one that the operator is told to make. */
const interpolated = (environment: Readonly<Record<string, string>>): Record<string, string> =>
  Object.fromEntries(
    Object.entries(environment).map(([name, value]) => [
      name,
      value.replace(/\$\{(\w+):\?([^}]*)\}/, (_all, variable: string, told: string) => {
        assert.match(told, /openssl rand/)
        return secrets[variable as keyof typeof secrets] ?? assert.fail(`${variable} is not known here`)
      }),
    ]),
  )

const dependencies = ({ depends_on: on = [] }: Service): readonly string[] =>
  Array.isArray(on) ? (on as readonly string[]) : Object.keys(on)

describe('deploy/Dockerfile', () => {
  const text = read('Dockerfile')

  test('the files that it copies are those that a package has, and what npm ci needs', () => {
    const allowed: readonly string[] = readFileSync(join(root, '.dockerignore'), 'utf8').match(/^!.*/gm) ?? []
    for (const one of ['bin', 'src', 'backends', 'config', 'package.json', 'package-lock.json'])
      assert.ok(allowed.includes(`!${one}`), one)
  })

  test('it runs the launcher with the Node that it needs, as a user without rights', () => {
    const [, version] = /^FROM node:(\d+)/m.exec(text) ?? []
    const { engines } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { engines: { node: string } }
    assert.ok(Number(version) >= Number(/\d+/.exec(engines.node)?.[0]))
    assert.match(text, /^USER node$/m)
    const [, entry] = /^ENTRYPOINT (.*)$/m.exec(text) ?? []
    const [, program] = JSON.parse(entry ?? '[]') as string[]
    assert.ok(existsSync(join(root, program ?? '')))
  })
})

describe('deploy/kubernetes.yaml', () => {
  const text = read('kubernetes.yaml')
  type Manifest = { readonly kind: string; readonly data?: Record<string, string> }
  const manifests = parseAllDocuments(text).map((one) => one.toJS() as Manifest)

  test('the configuration in it is valid, with the secrets that its first lines make', () => {
    const config = manifests.find(({ kind }) => kind === 'ConfigMap')?.data?.['cidgate.yaml'] ?? ''
    for (const [, name = ''] of config.matchAll(/\$\{(\w+)\}/g))
      assert.ok(text.includes(`--from-literal=${name}=`), name)
    parseConfig(parse(config), secrets)
  })

  test('the addresses that it probes are answered', async () => {
    const paths = new Set([...text.matchAll(/httpGet: \{ path: (\S+),/g)].map(([, path = '']) => path))
    assert.deepEqual([...paths].sort(), ['/healthz', '/readyz'])
    const { serving } = await started(startServed({}))
    for (const path of paths) assert.equal((await fetchAll(`http://${serving.admin}${path}`)).status, 200)
  })
})

test('deploy/cidgate.service starts, checks and reloads with commands that there are', () => {
  const text = read('cidgate.service')
  const programs = [...text.matchAll(/\/opt\/cidgate\/(\S+\.mjs) (\w+)/g)].map(([, file = '', command]) => ({
    file,
    command,
  }))
  assert.deepEqual(
    programs.map(({ command }) => command),
    ['check', 'serve'],
  )
  for (const { file } of programs) assert.ok(existsSync(join(root, file)))
})

describe('what the repository does on a push and on a tag', () => {
  for (const name of ['ci', 'release'])
    test(`${name}: every program and file that it names is there`, () => {
      const text = readFileSync(join(root, `.github/workflows/${name}.yml`), 'utf8')
      const { jobs } = parse(text) as { jobs: Record<string, { steps: { run?: string }[] }> }
      assert.ok(Object.values(jobs).every(({ steps }) => steps.length > 0))
      for (const [file = ''] of text.matchAll(/\.ci\/[\w-]+|deploy\/\w+|CHANGELOG\.md/g))
        assert.ok(existsSync(join(root, file)), file)
    })
})
