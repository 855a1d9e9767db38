// Which host a request came to, and what that makes it about.
import assert from 'node:assert/strict'
import type { IncomingMessage } from 'node:http'
import { describe, test } from 'node:test'
import { base36 } from 'multiformats/bases/base36'
import { CID } from 'multiformats/cid'
import { createHosts, type Hosts, inlined, type Located, labelOf, uninlined } from '../../src/http/hosts.ts'
import { createForwarded, readTarget } from '../../src/http/wire/request.ts'

const v1 = 'bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am'
const v0 = 'QmaozNR7DZHQK1ZcU9p7QdrshMvXqWK6gpu5rmrkPdT3L4'
const v0AsV1 = CID.parse(v0).toV1().toString()
const ed25519 = '12D3KooWLQzUv2FHWGVPXTXSZpdHs7oHbXub2G5WC8Tx4NQhyd2d'
const ed25519Key = 'k51qzi5uqu5dk3v4rmjber23h16xnr23bsggmqqil9z2gduiis5se8dht36dam'
const sha512 =
  'bafkrgqhhyivzstcz3hhswshfjgy6ertgmnqeleynhwt4dlfsthi4hn7zgh4uvlsb5xncykzapi3ocd4lzogukir6ksdy6wzrnz6ohnv4aglcs'

const hosts = createHosts({
  table: {
    'gw.example': { subdomains: true, trustless: false },
    'bytes.example': { subdomains: false, trustless: true },
  },
  hasLink: async (domain) => domain === 'site.example',
  forwarded: createForwarded(['127.0.0.1', '10.0.0.0/8', 'fd00::/8']),
})

type Headers = Record<string, string>

const asked = (host: string, url: string, headers: Headers = {}, remoteAddress = '127.0.0.1'): IncomingMessage =>
  ({
    url,
    httpVersion: '1.1',
    headers: { host, ...headers },
    rawHeaders: ['Host', host],
    socket: { remoteAddress },
  }) as unknown as IncomingMessage

async function located(at: Hosts, request: IncomingMessage): Promise<Located | undefined> {
  const found = at.locate(request, readTarget(request))
  if (found.kind === 'site' && !(await at.hasLink(found.name, AbortSignal.timeout(1000)))) return undefined
  return found.kind === 'by-path' ? undefined : found
}

const find = (host: string, url: string, headers?: Headers, remoteAddress?: string): Promise<Located | undefined> =>
  located(hosts, asked(host, url, headers, remoteAddress))

const moved = async (cases: readonly [host: string, url: string, location: string][]): Promise<void> => {
  for (const [host, url, location] of cases) assert.deepEqual(await find(host, url), { kind: 'moved', location }, url)
}

async function placeAt(host: string, url: string) {
  const found = await find(host, url)
  assert.ok(found && 'place' in found, `${host}${url}`)
  return found.place
}

describe('hosts', () => {
  test('path → redirect to its own origin, normalized', () =>
    moved([
      ['gw.example', `/ipfs/${v1}`, `http://${v1}.ipfs.gw.example/`],
      ['gw.example:8080', `/ipfs/${v1}/a%20b/?x=1`, `http://${v1}.ipfs.gw.example:8080/a%20b/?x=1`],
      ['GW.example', `/ipfs/${v1}/`, `http://${v1}.ipfs.GW.example/`],
      ['gw.example.', `/ipfs/${v1}/`, `http://${v1}.ipfs.gw.example/`],
      ['gw.example:', `/ipfs/${v1}/`, `http://${v1}.ipfs.gw.example/`],
      ['gw.example.:8080', `/ipfs/${v1}/`, `http://${v1}.ipfs.gw.example:8080/`],
      ['gw.example', `/ipfs/${v0}/a`, `http://${v0AsV1}.ipfs.gw.example/a`],
      ['gw.example', `/ipfs/${CID.parse(v1).toString(base36)}`, `http://${v1}.ipfs.gw.example/`],
      ['gw.example', `/ipns/${ed25519}`, `http://${ed25519Key}.ipns.gw.example/`],
      ['gw.example', '/ipns/en.wiki-on.example/wiki/', 'http://en-wiki--on-example.ipns.gw.example/wiki/'],
    ]))

  test('trusted proxy → its host and scheme', async () => {
    const headers = { 'x-forwarded-host': 'gw.example', 'x-forwarded-proto': 'https' }
    assert.deepEqual(await find('inside:3000', `/ipfs/${v1}`, headers), {
      kind: 'moved',
      location: `https://${v1}.ipfs.gw.example/`,
    })
    assert.equal(await find('inside:3000', `/ipfs/${v1}`, { 'x-forwarded-host': 'evil.test' }), undefined)
    for (const proto of ['https, http', 'HTTPS', ' https ,http'])
      assert.deepEqual(
        await find('inside:3000', `/ipfs/${v1}`, { ...headers, 'x-forwarded-proto': proto }),
        { kind: 'moved', location: `https://${v1}.ipfs.gw.example/` },
        proto,
      )
  })

  test('subdomain → own site, also for paths such as /ipfs/…', async () => {
    const place = await placeAt(`${v1}.ipfs.gw.example:81`, `/ipfs/${v0}/x?y`)
    assert.equal(place.path, `/ipfs/${v1}/ipfs/${v0}/x`)
    assert.equal(place.own, true)
    assert.equal(place.gateway, 'gw.example:81')
    const named = await placeAt('en-wiki--on-example.ipns.gw.example', '/')
    assert.equal(named.path, '/ipns/en.wiki-on.example/')
    assert.equal((await placeAt('en.wiki-on.example.ipns.gw.example', '/a')).path, '/ipns/en.wiki-on.example/a')
    assert.equal((await placeAt('docs.ipfs.tech.ipns.gw.example', '/a')).path, '/ipns/docs.ipfs.tech/a')
    assert.equal((await placeAt(`${ed25519Key}.ipns.gw.example`, '/')).path, `/ipns/${ed25519Key}/`)
  })

  test('other label spelling → redirect to the normalized one', () =>
    moved([
      [`${v0}.ipfs.gw.example`, '/a?b', `http://${v0AsV1}.ipfs.gw.example/a?b`],
      [`${CID.parse(v1).toString(base36)}.ipfs.gw.example`, '/', `http://${v1}.ipfs.gw.example/`],
      [`${ed25519}.ipns.gw.example`, '/', `http://${ed25519Key}.ipns.gw.example/`],
    ]))

  test('too long for a label → refused, as path and host', async () => {
    const tooLong = { message: /CID incompatible with DNS label length limit of 63/ }
    await assert.rejects(find('gw.example', `/ipfs/${sha512}`), tooLong)
    await assert.rejects(find(`${sha512}.ipfs.gw.example`, '/'), tooLong)
    await assert.rejects(find('nothing.ipfs.gw.example', '/'), { kind: 'malformed' })
  })

  test('configured host → never looked up', async () => {
    const asked: string[] = []
    const strict = createHosts({
      table: {
        'gw.example': { subdomains: true, trustless: false },
        'plain.example': { subdomains: false, trustless: false },
      },
      hasLink: async (domain) => asked.push(domain) > 0,
      forwarded: createForwarded([]),
    })
    for (const host of ['gw.example', 'Plain.example:81', 'bafkqaaa.ipfs.gw.example', 'site.example']) {
      const request = { url: '/a', httpVersion: '1.1', headers: { host }, rawHeaders: ['Host', host], socket: {} }
      const message = request as unknown as IncomingMessage
      await located(strict, message)
    }
    assert.deepEqual(asked, ['site.example'])
  })

  test('cache key ignores the case of the host', async () => {
    for (const host of [`${v1}.ipfs.gw.example`, `${v1}.ipfs.gw.example:81`, `${v1}.IPFS.GW.example`]) {
      const place = await placeAt(host, '/ipfs/x')
      assert.equal(place.cacheKey, hosts.keyOf(asked(host, '/ipfs/x')))
      assert.match(String(place.cacheKey), / /, 'which no URL can hold')
    }
  })
})

describe('host labels', () => {
  test('base32, base36 if too long, always base36 for keys', () => {
    assert.equal(labelOf(CID.parse(v0), 'ipfs'), v0AsV1)
    assert.ok(labelOf(CID.parse(ed25519Key, base36), 'ipfs').startsWith('k'))
  })

  test('domain → label → domain', () => {
    for (const name of ['en.wikipedia-on-ipfs.org', 'a--b.c', 'x.y-z.w']) assert.equal(uninlined(inlined(name)), name)
    assert.equal(inlined('en.wikipedia-on-ipfs.org'), 'en-wikipedia--on--ipfs-org')
  })
})
