// Every secret that a configuration can hold, looked for in everything that a gateway says while whatever it asks refuses it and
// repeats what it was told: log, metrics, answers on both addresses, spans, files, and what the commands print.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { type AddressInfo, createServer as createTcpServer, type Server } from 'node:net'
import { join } from 'node:path'
import { PassThrough, Readable } from 'node:stream'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { runDoctor } from '../../src/cli/doctor-checks.ts'
import { run } from '../../src/cli/run.ts'
import { loadConfig } from '../../src/config/load.ts'
import { multipart, post } from '../support/adding.ts'
import { fetchAll, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'

/** Two halves, so that one that is cut, or split at the `@` in it, is seen as well. */
type Secret = { readonly halves: readonly [string, string]; readonly whole: string }

function secret(what: string, joint = ''): Secret {
  const digest = createHash('sha256').update(what).digest('hex')
  const halves = [digest.slice(0, 12), digest.slice(12, 24)] as const
  return { halves, whole: halves.join(joint) }
}

const secrets = {
  'an upload token': secret('an upload token'),
  'an upload token with a name': secret('an upload token with a name'),
  'a token of the admin address': secret('a token of the admin address'),
  'the header of an upstream': secret('the header of an upstream'),
  'the query of an upstream': secret('the query of an upstream'),
  'the access key of a bucket': secret('the access key of a bucket'),
  'the secret key of a bucket': secret('the secret key of a bucket'),
  'the query of a bucket': secret('the query of a bucket'),
  'the password of Redis': secret('the password of Redis', '@'),
  'the password of a Kubo': secret('the password of a Kubo', '@'),
  'the token of a cluster': secret('the token of a cluster'),
  'the token of pinata': secret('the token of pinata'),
  'the token of a pinning service': secret('the token of a pinning service'),
  'the token of another gateway': secret('the token of another gateway'),
  'a header for another gateway': secret('a header for another gateway'),
  'a header for the gateway of a provider': secret('a header for the gateway of a provider'),
  'the access key of filebase': secret('the access key of filebase'),
  'the secret key of filebase': secret('the secret key of filebase'),
  'the password of a denylist': secret('the password of a denylist', '@'),
  'the query of a denylist': secret('the query of a denylist'),
  'the query of DNS over HTTPS': secret('the query of DNS over HTTPS'),
  'a header for the collector of spans': secret('a header for the collector of spans'),
  'the authorization of thin mode': secret('the authorization of thin mode'),
  'the query of thin mode': secret('the query of thin mode'),
} as const
const of = (what: keyof typeof secrets): string => secrets[what].whole

/** Keys that sign and are never sent, what is no part of a request, and what the gateway alone is sent. */
const neverSent: ReadonlySet<string> = new Set<keyof typeof secrets>([
  ...(['an upload token', 'an upload token with a name', 'a token of the admin address'] as const),
  ...(['the secret key of a bucket', 'the secret key of filebase', 'the query of a bucket'] as const),
  'the password of a denylist',
])

const said: [where: string, text: string][] = []
const heard: string[] = []
const servers: Server[] = []
let folder = ''
let problems = ''

async function listening(server: Server): Promise<string> {
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return `127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** Refuses everything, and repeats what it was told in each of the places where services say why. */
const startRefusing = (): Promise<string> =>
  listening(
    createServer((request, response) => {
      const { method, url = '', headers } = request
      heard.push(`${method} ${url} ${JSON.stringify(headers)}`)
      const pieces: Buffer[] = []
      request.on('data', (piece: Buffer) => pieces.push(piece))
      request.on('end', () => {
        if (url === '/v1/traces') said.push(['the spans', Buffer.concat(pieces).toString()])
        const words = `${url} ${headers.authorization} ${Object.values(headers).join(' ')}`
        const why = { error: words, message: words, Message: words, reason: words }
        response.writeHead(401, { 'content-type': 'application/json', 'x-why': words }).end(JSON.stringify(why))
      })
    }) as Server,
  )

const startRefusingRedis = (): Promise<string> =>
  listening(
    createTcpServer((socket) => {
      socket.on('error', () => {})
      socket.on('data', (bytes) => {
        heard.push(String(bytes))
        socket.write(`-WRONGPASS ${String(bytes).replaceAll(/\s+/g, ' ')}\r\n`)
      })
    }),
  )

function configOf(service: string, redis: string): Record<string, unknown> {
  const url = `http://${service}`
  const user = (what: keyof typeof secrets) => `user:${of(what)}@`
  return {
    data: join(folder, 'data'),
    listen: '127.0.0.1:0',
    admin: '127.0.0.1:0',
    adminAccess: { tokens: [of('a token of the admin address')] },
    upload: {
      auth: { tokens: [of('an upload token'), { name: 'ci', token: of('an upload token with a name') }] },
      kuboRpc: true,
    },
    log: { level: 'debug', access: 'all', stateEvery: '50ms' },
    names: { dns: [`${url}/dns-query?key=${of('the query of DNS over HTTPS')}`] },
    proxy: [{ path: '/there', to: url }],
    denylists: [
      {
        url: `http://${user('the password of a denylist')}${service}/list?key=${of('the query of a denylist')}`,
        required: false,
      },
    ],
    retrieval: {
      timeout: '1s',
      upstreams: [
        {
          name: 'one',
          url: `${url}/up?key=${of('the query of an upstream')}`,
          headers: { authorization: `Bearer ${of('the header of an upstream')}` },
        },
      ],
    },
    cache: {
      tiers: [
        { use: 'memory', maxBytes: '1MiB' },
        { use: 'redis', url: `redis://${user('the password of Redis')}${redis}` },
        {
          use: 's3',
          bucket: 'blocks',
          endpoint: `${url}/?key=${of('the query of a bucket')}`,
          accessKeyId: of('the access key of a bucket'),
          secretAccessKey: of('the secret key of a bucket'),
        },
      ],
    },
    pinning: { providers: providersOf(url) },
  }
}

const providersOf = (url: string): Record<string, unknown>[] => [
  { name: 'kubo', use: 'kubo', url, auth: { basic: `user:${of('the password of a Kubo')}` } },
  { name: 'cluster', use: 'cluster', url, auth: { bearer: of('the token of a cluster') } },
  { name: 'pinata', use: 'pinata', uploadsUrl: url, apiUrl: url, token: of('the token of pinata') },
  { name: 'psa', use: 'psa', url, token: of('the token of a pinning service') },
  {
    name: 'forward',
    use: 'forward',
    url: `${url}/add`,
    token: of('the token of another gateway'),
    headers: { 'x-account': of('a header for another gateway') },
    gateway: { url, headers: { 'x-reader': of('a header for the gateway of a provider') } },
  },
  {
    name: 'filebase',
    use: 'filebase',
    endpoint: url,
    bucket: 'pins',
    accessKeyId: of('the access key of filebase'),
    secretAccessKey: of('the secret key of filebase'),
  },
]

const absent = '/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'
type Answer = { readonly status: number; readonly headers: object; readonly body: unknown }
const told = ({ status, headers, body }: Answer): string => `${status} ${JSON.stringify(headers)} ${body}`

async function askEverything({ url, gateway }: TestGateway, token: string): Promise<void> {
  const bearer = { authorization: `Bearer ${token}` }
  const form = multipart([{ body: 'hello' }])
  for (const path of [absent, '/ipns/docs.example', '/ipfs/nonsense', '/there/it', '/nothing'])
    said.push([path, told(await fetchAll(url + path, bearer))])
  for (const path of ['/add', '/api/v0/add', '/api/v0/pin/rm?arg=bafkqaaa', `/api/v0/block/get?arg=${absent.slice(6)}`])
    for (const [who, headers] of Object.entries({
      nobody: {},
      stranger: { authorization: 'Bearer x' },
      client: bearer,
    }))
      said.push([`${path} for a ${who}`, told(await post(url + path, form, headers))])
  const admin = `http://${await listening(createServer(gateway.admin) as Server)}`
  for (const path of ['/', '/healthz', '/readyz', '/metrics', '/status', '/uploads', '/pins', '/nothing'])
    said.push([path, told(await fetchAll(admin + path))])
  for (const path of [`/why?path=${absent}`, `/blocks?path=${absent}`, '/pins/bafkqaaa'])
    said.push([path, told(await fetchAll(admin + path))])
  said.push(['the admin address from elsewhere', told(await fetchAll(`${admin}/pins`, { via: '1.1 a', ...bearer }))])
}

async function until(what: string, holds: () => boolean): Promise<void> {
  for (let tries = 0; !holds(); tries++) {
    assert.ok(tries < 2000, what)
    await sleep(10)
  }
}

/** What a command prints, on both outputs. */
async function commanded(...args: string[]): Promise<string> {
  let out = ''
  const outputs = [new PassThrough(), new PassThrough()] as const
  for (const output of outputs) output.on('data', (chunk) => (out += chunk))
  const [stdout, stderr] = outputs
  await run(args, { stdin: Readable.from([]), stdout, stderr, environment: {} })
  await new Promise(setImmediate)
  return out
}

async function lookThroughCommands(name: string, config: object): Promise<void> {
  const file = join(folder, `${name}.json`)
  const text = JSON.stringify(config)
  await writeFile(file, text)
  for (const more of [[], ['--json']]) {
    const effective = await commanded('check', file, '--effective', ...more)
    assert.match(effective, /upload/)
    said.push([`check --effective ${more}`, effective])
  }
  const lines: string[] = []
  await runDoctor(loadConfig(file), { asJson: name === 'thin', print: (line) => void lines.push(line) })
  said.push([`doctor of ${name}`, lines.join('\n')])
  // No address is one any more, and no token can be sent: each is complained of.
  const wrong = Object.values(secrets).reduce((all, { whole }) => all.replaceAll(whole, `${whole} \u00fc`), text)
  await writeFile(`${file}.wrong`, wrong.replaceAll('http:', 'htp:').replaceAll('redis:', 'redi:'))
  problems = await commanded('check', `${file}.wrong`)
  said.push(['check of mistakes', problems])
}

async function allFiles(below: string): Promise<string> {
  const entries = await readdir(below, { recursive: true, withFileTypes: true })
  const files = entries.filter((entry) => entry.isFile()).map(({ parentPath, name }) => join(parentPath, name))
  return files.join('\n') + (await Promise.all(files.map((file) => readFile(file, 'latin1')))).join('\n')
}

before(async () => {
  folder = await tempFolder()
  const service = await startRefusing()
  const config = configOf(service, await startRefusingRedis())
  const { retrieval, cache, ...rest } = config as Record<string, Record<string, unknown>>
  const tracing = {
    OTEL_EXPORTER_OTLP_ENDPOINT: `http://${service}`,
    OTEL_EXPORTER_OTLP_HEADERS: `authorization=${of('a header for the collector of spans')}`,
  }
  const data = join(folder, 'data')
  const at = await startGateway({
    data,
    tracing,
    config: { ...rest, cache, retrieval: { ...retrieval, probeEvery: '1h' } },
  })
  await askEverything(at, of('an upload token'))
  await until('it says how it is', () => at.log.some(({ event }) => event === 'gateway.state'))
  await at.close()
  said.push(['the log', JSON.stringify(at.log)])
  said.push(['the data folder', await allFiles(data)])

  const through = {
    url: `http://${service}/add?key=${of('the query of thin mode')}`,
    authorization: `Bearer ${of('the authorization of thin mode')}`,
  }
  const thinConfig = { data: join(folder, 'thin'), upload: { forwardTo: through }, pinning: { providers: [] } }
  const thin = await startGateway({ data: thinConfig.data, config: thinConfig })
  const answer = await post(`${thin.url}/add`, multipart([{ body: 'hello' }]))
  await thin.close()
  said.push(['an upload in thin mode', told(answer)], ['the log of thin mode', JSON.stringify(thin.log)])

  await lookThroughCommands('thin', { ...thinConfig, retrieval: { upstreams: [] } })
  await lookThroughCommands('all', config)
})
after(async () => {
  for (const server of servers) server.close()
  await rm(folder, { recursive: true, force: true })
})

const formsOf = ({ halves, whole }: Secret): string[] => [
  ...halves,
  ...[whole, `user:${whole}`].map((text) => Buffer.from(text).toString('base64').replaceAll('=', '')),
]

describe('output contains no secrets', () => {
  for (const [what, one] of Object.entries(secrets))
    test(what, () => {
      for (const [where, text] of said)
        for (const form of formsOf(one))
          assert.ok(
            !text.includes(form),
            `${where}: ${text.slice(Math.max(0, text.indexOf(form) - 200)).slice(0, 400)}`,
          )
    })

  test('every secret sent and repeated → in no output', () => {
    const all = heard.join('\n')
    const unheard = Object.entries(secrets).filter(
      ([what, one]) =>
        !neverSent.has(what) && ![one.whole, ...formsOf(one).slice(2)].some((form) => all.includes(form)),
    )
    assert.deepEqual(unheard, [])
  })

  test('every output → searched', () => {
    const texts = new Map(said)
    for (const where of [
      'the log',
      '/metrics',
      '/status',
      '/readyz',
      'doctor of all',
      'check --effective ',
      'the spans',
    ])
      assert.ok((texts.get(where)?.length ?? 0) > 200, where)
    for (const name of ['kubo', 'cluster', 'pinata', 'psa', 'forward', 'filebase'])
      assert.match(texts.get('doctor of all') ?? '', new RegExp(`^bad +provider ${name} `, 'm'))
    assert.match(texts.get('the log') ?? '', /"level":"debug"/)
    assert.ok(problems.split('\n').length > 15, problems)
  })
})
