// GET /openapi.json as a client reads it: its form, its examples against its own schemas, and the statuses we answer with.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { rm, writeFile } from 'node:fs/promises'
import { request } from 'node:http'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { promisify } from 'node:util'
import { Ajv2020 } from 'ajv/dist/2020.js'
import type { FailureKind } from '../../src/core/failure.ts'
import { addStatuses, anyStatuses, readStatuses } from '../../src/http/openapi/document.ts'
import { table } from '../../src/http/wire/problem.ts'
import { builtIn } from '../../src/schemas/checks.ts'
import { multipart, post } from '../support/adding.ts'
import { fetchAll, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'

type Json = { readonly [name: string]: Json } & { readonly $ref?: string }

/** What fetch does not let its caller expect. */
const expecting = (url: string) =>
  new Promise<Response>((resolve, reject) => {
    const asked = request(url, { method: 'POST', headers: { Expect: 'the-impossible' }, agent: false }, (answer) => {
      const pieces: Buffer[] = []
      answer.on('data', (piece: Buffer) => pieces.push(piece))
      answer.once('end', () => {
        const headers = Object.entries(answer.headers).map(([name, value]): [string, string] => [name, String(value)])
        resolve(new Response(Buffer.concat(pieces), { status: answer.statusCode ?? 0, headers }))
      })
    })
    asked.once('error', reject).end()
  })

const unescaped = (text: string): string => text.replaceAll('&quot;', '"').replaceAll('&amp;', '&')

describe('GET /openapi.json', () => {
  let at: TestGateway
  let document: Json
  before(async () => {
    at = await startGateway({
      config: {
        upload: { schemas: { own: { type: 'object' } } },
        pinning: { providers: [{ name: 'local', use: 'embedded' }] },
      },
    })
    document = JSON.parse((await fetchAll(`${at.url}/openapi.json`)).body.toString()) as Json
  })
  after(() => at.close())

  const ajv = new Ajv2020({ strict: false, validateFormats: false })
  const found = (pointer: string): Json | undefined =>
    pointer
      .slice(2)
      .split('/')
      .reduce<Json | undefined>((one, step) => one?.[step.replaceAll('~1', '/')], document)
  const resolved = (one: Json): Json => (typeof one.$ref === 'string' ? (found(one.$ref) as Json) : one)
  const isText = (one: unknown, text: string): boolean => one === text
  const entries = (one: Json | undefined): [string, Json][] => Object.entries(one ?? {}) as [string, Json][]

  /** Every object in it, with where it stands. */
  function* walk(value: unknown, path = '#'): Generator<[string, Json]> {
    if (typeof value !== 'object' || value === null) return
    if (!Array.isArray(value)) yield [path, value as Json]
    for (const [name, one] of Object.entries(value)) yield* walk(one, `${path}/${name}`)
  }

  it('any origin, cacheable, with ETag', async () => {
    const { status, headers } = await fetchAll(`${at.url}/openapi.json`)
    assert.equal(status, 200)
    assert.equal(headers['content-type'], 'application/json')
    assert.equal(headers['access-control-allow-origin'], '*')
    assert.match(headers['cache-control'] ?? '', /max-age=\d+/)
    const again = await fetchAll(`${at.url}/openapi.json`, { 'If-None-Match': String(headers.etag) })
    assert.deepEqual([again.status, again.body.byteLength], [304, 0])
    const head = await fetch(`${at.url}/openapi.json`, { method: 'HEAD' })
    assert.deepEqual([head.status, head.headers.get('etag')], [200, headers.etag])
    assert.equal((await fetch(`${at.url}/openapi.json`, { method: 'POST' })).status, 405)
    assert.equal((await fetch(`${at.url}/openapi.json`, { method: 'OPTIONS' })).status, 204)
  })

  it('browser → equivalent page, loads nothing, links to JSON', async () => {
    const headers = { accept: 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8' }
    const page = await fetch(`${at.url}/openapi.json`, { headers })
    const text = await page.text()
    assert.equal(page.headers.get('content-type'), 'text/html; charset=utf-8')
    assert.equal(page.headers.get('vary'), 'Accept')
    assert.match(page.headers.get('content-security-policy') ?? '', /^default-src 'none'/)
    assert.match(text, /<span class="method post">POST<\/span><code>\/add<\/code>/)
    // Each operation has an example that can be pasted.
    const examples = [...text.matchAll(/<pre id="[^"]+">(curl [^<]+)<\/pre>/g)].map(([, one = '']) => unescaped(one))
    assert.equal(examples.length, text.split('class="method').length - 1)
    const folder = await tempFolder()
    try {
      await writeFile(join(folder, 'file.json'), '{"a":"file"}')
      for (const example of examples) {
        const command = example.replace('curl ', 'curl -s -o /dev/null -w "%{http_code}" ')
        const environment = { ...process.env, GATEWAY: at.url, TOKEN: 'token' }
        const { stdout } = await promisify(execFile)('sh', ['-c', command], { cwd: folder, env: environment })
        // The content of the examples is not here: what is asked is understood.
        assert.match(stdout, /^(?:200|30\d|404)$/, example)
      }
    } finally {
      await rm(folder, { recursive: true })
    }
    assert.match(text, /<dt><code>dag-scope \(query\)<\/code><\/dt><dd>[^<]+ One of <code>block<\/code>/)
    assert.match(text, /<dt><code>416<\/code><\/dt><dd>[^<]+<code>Content-Range<\/code>/)
    for (const path of Object.keys(document['paths'] ?? {})) assert.ok(text.includes(path), path)
    assert.doesNotMatch(text, /<script|undefined|\[object/)
    const tag = page.headers.get('etag') ?? ''
    const known = await fetch(`${at.url}/openapi.json`, { headers: { ...headers, 'if-none-match': tag } })
    assert.equal(known.status, 304)
    const json = await fetch(`${at.url}/openapi.json?format=json`, { headers })
    assert.deepEqual(await json.json(), document)
  })

  it('OpenAPI 3.1 document of API 1.0.0', () => {
    assert.match(String(document['openapi']), /^3\.1\.\d+$/)
    assert.equal(document['info']?.['version'], '1.0.0')
    const ids: unknown[] = []
    for (const [path, item] of entries(document['paths'])) {
      const named = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)
      const shared = ((item['parameters'] ?? []) as unknown as Json[]).map(resolved)
      assert.deepEqual(
        shared.filter((one) => String(one['in']) === 'path').map((one) => String(one['name'])),
        named,
      )
      for (const [method, operation] of entries(item)) {
        if (method === 'parameters') continue
        assert.ok(['get', 'head', 'post'].includes(method))
        ids.push(operation['operationId'])
        const all = [...shared, ...((operation['parameters'] ?? []) as unknown as Json[]).map(resolved)]
        for (const one of all) {
          assert.ok(['path', 'query', 'header'].includes(String(one['in'])))
          assert.ok(one['schema'])
        }
        for (const [status, response] of entries(operation['responses'])) {
          assert.match(status, /^[1-5]\d\d$/)
          assert.equal(typeof resolved(response)['description'], 'string')
          for (const [name, header] of entries(resolved(response)['headers']))
            assert.ok(resolved(header)['schema'], name)
        }
      }
    }
    assert.equal(new Set(ids).size, ids.length)
  })

  it('operation names and path root → those of the contract', () => {
    const operations = Object.fromEntries(
      entries(document['paths']).flatMap(([path, item]) =>
        entries(item)
          .filter(([method]) => method !== 'parameters')
          .map(([method, { operationId }]) => [`${method} ${path}`, operationId]),
      ),
    )
    assert.deepEqual(operations, {
      'post /add': 'uploadToIpfs',
      'get /ipfs/{hash}': 'getIpfsContent',
      'head /ipfs/{hash}': 'headIpfsContent',
      'get /ipfs/{hash}/{path}': 'getIpfsContentAt',
      'head /ipfs/{hash}/{path}': 'headIpfsContentAt',
      'get /ipns/{name}': 'getIpnsContent',
      'head /ipns/{name}': 'headIpnsContent',
      'get /ipns/{name}/{path}': 'getIpnsContentAt',
      'head /ipns/{name}/{path}': 'headIpnsContentAt',
      'get /ipfs/': 'followIpfsUri',
      'get /ipns/': 'followIpnsUri',
      'get /openapi.json': 'getDescription',
      'head /openapi.json': 'headDescription',
    })
  })

  it('uploads are binary, so generated clients send files', () => {
    const body = document['paths']?.['/add']?.['post']?.['requestBody']?.['content']?.['multipart/form-data']
    const { type, format, contentMediaType } = body?.['schema']?.['properties']?.['data'] ?? {}
    assert.deepEqual([type, format, contentMediaType], ['string', 'binary', 'application/octet-stream'])
  })

  it('records only under /ipns', async () => {
    for (const [path, item] of entries(document['paths'])) {
      if (!path.startsWith('/ip')) continue
      assert.equal(JSON.stringify(item['get']).includes('ipns-record'), /^\/ipns\/\{/.test(path), path)
      const format = ((item['parameters'] ?? []) as unknown as Json[])
        .map(resolved)
        .find(({ name }) => isText(name, 'format'))
      if (format) assert.equal(JSON.stringify(format).includes('ipns-record'), path.startsWith('/ipns'), path)
    }
    const answer = await fetch(`${at.url}/ipfs/bafkqaaa?format=ipns-record`)
    assert.equal(answer.status, 400)
  })

  it('every reference resolves', () => {
    let count = 0
    for (const [path, { $ref }] of walk(document)) {
      if (typeof $ref !== 'string') continue
      count++
      assert.ok(found($ref), `${path} points at ${$ref}`)
    }
    assert.ok(count > 30)
  })

  it('upload schemas are included, with valid examples', () => {
    const schemas = document['components']?.['schemas']
    assert.deepEqual(schemas?.['EvidenceFile'], builtIn['evidence'])
    assert.deepEqual(schemas?.['PolicyFile'], builtIn['policy'])
    assert.deepEqual(schemas?.['DisputeTemplate'], builtIn['dispute-template'])
    for (const [name, schema] of entries(schemas)) {
      const validate = ajv.compile(inlined(schema))
      for (const example of (schema['examples'] ?? []) as unknown as unknown[])
        assert.ok(validate(example), `${name}: ${ajv.errorsText(validate.errors)}`)
    }
  })

  /** With what it points at in its place. */
  const inlined = (one: Json): Json =>
    JSON.parse(JSON.stringify(one), (_key, value) =>
      typeof value?.$ref === 'string' ? found(value.$ref) : value,
    ) as Json

  it('examples match their schemas', () => {
    let count = 0
    for (const [path, media] of walk(document)) {
      if (!media['schema'] || !media['examples'] || path.includes('/properties/')) continue
      const validate = ajv.compile(inlined(media['schema']))
      for (const [name, { value }] of entries(media['examples'])) {
        count++
        assert.ok(validate(value), `${path}/${name}: ${ajv.errorsText(validate.errors)}`)
      }
    }
    assert.ok(count >= 10, `${count} examples`)
  })

  it('upload examples → accepted with their schema', async () => {
    const { requestBody } = document['paths']?.['/add']?.['post'] ?? {}
    const examples = requestBody?.['content']?.['multipart/form-data']?.['examples']
    const names: Record<string, string> = {
      EvidenceFile: 'evidence',
      PolicyFile: 'policy',
      DisputeTemplate: 'dispute-template',
    }
    assert.deepEqual(Object.keys(examples ?? {}), Object.keys(names))
    for (const [title, { value }] of entries(examples)) {
      const { status, body } = await post(
        `${at.url}/add?schema=${names[title]}`,
        multipart([{ body: String(value?.['data']) }]),
      )
      assert.equal(status, 200, body)
    }
    assert.ok(JSON.stringify(document['components']?.['parameters']?.['schema']).includes('"own"'))
  })

  it('lists every status of a Failure', () => {
    const named = new Set<number>([...readStatuses, ...addStatuses])
    // The client is gone: nobody reads it.
    const kinds = (Object.keys(table) as FailureKind[]).filter((kind) => kind !== 'cancelled')
    for (const kind of kinds) for (const mode of ['api', 'web'] as const) assert.ok(named.has(table[kind][mode]), kind)
    for (const [path, item] of entries(document['paths']))
      for (const [method, { responses }] of entries(item)) {
        if (method === 'parameters') continue
        const isRead = path.startsWith('/ip')
        const wanted = isRead ? readStatuses : path === '/add' ? addStatuses : anyStatuses
        for (const status of wanted) assert.ok(responses?.[status], `${method} ${path} ${status}`)
      }
  })

  it('lists every status in the sources', () => {
    const named = new Set(
      entries(document['paths']).flatMap(([, item]) =>
        entries(item).flatMap(([, { responses }]) => Object.keys(responses ?? {})),
      ),
    )
    const folder = (name: string) => new URL(`../../src/${name}/`, import.meta.url)
    // Kubo's RPC has a reference and tests of its own; the admin address is not public; what a service behind `proxy` says is its own.
    const isOther = (file: string) =>
      /(^|\/)(admin|kubo|proxy|openapi)[^/]*\.ts$|^(admin|kubo|proxy|openapi)\//.test(file)
    let count = 0
    for (const name of ['http', 'upload', 'schemas', 'content'])
      for (const file of readdirSync(folder(name), { recursive: true, encoding: 'utf8' })) {
        if (!file.endsWith('.ts') || isOther(file)) continue
        const text = readFileSync(new URL(file, folder(name)), 'utf8')
        for (const [, status = ''] of text.matchAll(/\b(?:status: |writeHead\(|statusCode = )(\d{3})\b/g)) {
          count++
          assert.ok(named.has(status) || status === '204', `${file} answers ${status}`)
        }
      }
    assert.ok(count > 10, `${count} statuses`)
  })

  it('lists observed responses', async () => {
    const add = document['paths']?.['/add']?.['post']?.['responses']
    const read = document['paths']?.['/ipfs/{hash}']?.['get']?.['responses']
    const description = document['paths']?.['/openapi.json']?.['get']?.['responses']
    const problem = ajv.compile(document['components']?.['schemas']?.['Problem'] as Json)
    const cid = 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'
    const asked: [Json | undefined, number, Promise<Response>][] = [
      [add, 400, fetch(`${at.url}/add`, { method: 'POST', body: 'x' })],
      [add, 405, fetch(`${at.url}/add`)],
      [read, 404, fetch(`${at.url}/ipfs/${cid}`)],
      [read, 400, fetch(`${at.url}/ipfs/nonsense`)],
      [read, 412, fetch(`${at.url}/ipfs/${cid}`, { headers: { 'Cache-Control': 'only-if-cached' } })],
      [read, 405, fetch(`${at.url}/ipfs/${cid}`, { method: 'DELETE' })],
      [read, 406, fetch(`${at.url}/ipfs/bafkqaaa?format=dag-json`)],
      [read, 416, fetch(`${at.url}/ipfs/bafkqablimvwgy3y`, { headers: { Range: 'bytes=99-' } })],
      [read, 431, fetch(`${at.url}/ipfs/${cid}`, { headers: { 'X-Long': 'x'.repeat(20_000) } })],
      [description, 405, fetch(`${at.url}/openapi.json`, { method: 'PUT' })],
      [description, 431, fetch(`${at.url}/openapi.json`, { headers: { 'X-Long': 'x'.repeat(20_000) } })],
      [add, 417, expecting(`${at.url}/add`)],
    ]
    for (const [responses, status, answer] of asked) {
      const response = await answer
      assert.equal(response.status, status)
      assert.equal(response.headers.get('content-type'), 'application/problem+json')
      const said = resolved(responses?.[status] as Json)
      for (const name of Object.keys(said['headers'] ?? {})) assert.ok(response.headers.has(name), `${status}: ${name}`)
      const body: unknown = await response.json()
      assert.ok(problem(body), ajv.errorsText(problem.errors))
    }
  })
})

describe("GET /openapi.json with the operator's schemas", () => {
  it('schema of the operator → shown as enforced', async () => {
    const receipt = {
      type: 'object',
      required: ['total'],
      properties: { total: { $ref: '#/$defs/amount' } },
      $defs: { amount: { type: 'number' } },
      examples: [{ total: 3 }],
    }
    const evidence = { title: 'Mine', type: 'object', required: ['proof'] }
    const at = await startGateway({ config: { upload: { schemas: { receipt, evidence } } } })
    try {
      const document = (await (await fetch(`${at.url}/openapi.json`)).json()) as Json
      const { schemas, parameters } = document['components'] ?? {}
      assert.equal(schemas?.['EvidenceFile'], undefined)
      assert.deepEqual(schemas?.['evidence'], { ...evidence, $id: 'urn:cidgate:schema:evidence' })
      const names: unknown = parameters?.['schema']?.['schema']?.['enum']
      assert.deepEqual(names, ['evidence', 'policy', 'dispute-template', 'receipt'])
      assert.deepEqual(
        document['paths']?.['/ipfs/{hash}']?.['get']?.['responses']?.['200']?.['content']?.['application/json']?.[
          'examples'
        ]?.['receipt'],
        { value: { total: 3 } },
      )
      const published = new Ajv2020({ strict: false }).compile(schemas?.['receipt'] as Json)
      for (const [total, status] of [
        [1, 200],
        ['x', 400],
      ]) {
        const body = JSON.stringify({ total })
        assert.equal(published({ total }), status === 200)
        assert.equal((await post(`${at.url}/add?schema=receipt`, multipart([{ body }]))).status, status)
      }
    } finally {
      await at.close()
    }
  })
})

describe('GET /openapi.json in web mode', () => {
  it('errors may be a page or text', async () => {
    const at = await startGateway({ config: { responses: { types: 'web' } } })
    try {
      const document = (await (await fetch(`${at.url}/openapi.json`)).json()) as Json
      const types = Object.keys(document['components']?.['responses']?.['Problem404']?.['content'] ?? {})
      for (const accept of ['text/html', 'application/json']) {
        const { headers } = await fetch(`${at.url}/ipfs/nonsense`, { headers: { accept } })
        assert.ok(types.includes(headers.get('content-type')?.split(';')[0] ?? ''), accept)
      }
    } finally {
      await at.close()
    }
  })
})
