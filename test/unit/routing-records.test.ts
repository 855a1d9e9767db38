// What routers say: answers within bounds, and addresses of strangers that may be asked.
import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { isInside } from '../../backends/upstreams/connect.ts'
import {
  type AddressRules,
  gatewayAddress,
  maxLineBytes,
  type PeerRecord,
  readPeers,
} from '../../src/routing/answer.ts'

const ndjson = 'application/x-ndjson'
const json = 'application/json'

async function* pieces(...texts: (string | Uint8Array)[]): AsyncGenerator<Uint8Array> {
  for (const text of texts) yield Buffer.from(text as string)
}

async function all(type: string | undefined, ...texts: (string | Uint8Array)[]): Promise<PeerRecord[]> {
  const records: PeerRecord[] = []
  for await (const record of readPeers(type, pieces(...texts))) records.push(record)
  return records
}

const record = (id: string, addresses: readonly string[] = ['/dns/h/https']) =>
  JSON.stringify({ Schema: 'peer', ID: id, Addrs: addresses, Protocols: ['transport-ipfs-gateway-http'] })
const ids = (records: readonly PeerRecord[]) => records.map(({ id }) => id)

describe('router responses', () => {
  it('lines in any chunks → each record as it arrives', async () => {
    const text = `${record('a')}\n${record('b')}\n${record('c')}`
    for (let at = 0; at <= text.length; at += 7)
      assert.deepEqual(ids(await all(ndjson, text.slice(0, at), text.slice(at))), ['a', 'b', 'c'])
  })

  it('JSON instead of lines → its list', async () => {
    assert.deepEqual(ids(await all(`${json}; charset=utf-8`, `{"Providers":[${record('a')},${record('b')}]}`)), [
      'a',
      'b',
    ])
    for (const text of ['{}', '{"Providers":null}']) assert.deepEqual(await all(json, text), [])
  })

  it('malformed record → skipped, others kept', async () => {
    const bad = [
      '{',
      'null',
      '7',
      '"x"',
      '[]',
      '{}',
      '{"Schema":"other"}',
      '{"Schema":"bitswap","Protocol":"x"}',
      '{"Schema":"peer","ID":7}',
      '{"Schema":"peer","Addrs":"x"}',
      '{"Schema":"peer","Protocols":{}}',
    ]
    assert.deepEqual(ids(await all(ndjson, `${record('a')}\n${bad.join('\n')}\n${record('b')}\n`)), ['a', 'b'])
    const list = bad.slice(1).join()
    assert.deepEqual(ids(await all(json, `{"Providers":[${record('a')},${list},${record('b')}]}`)), ['a', 'b'])
  })

  it('missing lists, unknown keys → record without them', async () => {
    for (const text of [
      '{"Schema":"peer","ID":"a"}',
      '{"Schema":"peer","ID":"a","Addrs":null,"Protocols":null,"x":"oBIA"}',
    ])
      assert.deepEqual(await all(ndjson, text), [{ id: 'a', addresses: [], protocols: [] }])
  })

  it('endless line → bounded, following ones parsed', async () => {
    const long = 'x'.repeat(maxLineBytes * 3)
    assert.deepEqual(ids(await all(ndjson, long.slice(0, 9), long, `\n${record('a')}`)), ['a'])
    let sent = 0
    async function* endless() {
      for (;;) {
        sent += 65_536
        yield Buffer.alloc(65_536, 'x')
      }
    }
    for await (const _record of readPeers(ndjson, endless())) assert.fail()
    assert.ok(sent <= 1024 * 1024 + 65_536)
  })

  it('thousands of records and addresses → bounded', async () => {
    const many = Array.from({ length: 1000 }, (_, index) =>
      record(
        `${index}`,
        Array.from({ length: 100 }, () => '/dns/h/https'),
      ),
    )
    const read = await all(
      ndjson,
      many
        .map((line) => `${line}\n`)
        .join('')
        .slice(0, 900_000),
    )
    assert.ok(read.length <= 200)
    assert.equal(read[0]?.addresses.length, 16)
  })

  it('JSON of more than 1 MiB → a Failure', async () => {
    await assert.rejects(all(json, Buffer.alloc(1024 * 1024 + 1, ' ')), /larger than/)
  })

  it('another media type → a Failure', async () => {
    for (const type of [undefined, 'text/html', 'application/x-ndjson2'])
      await assert.rejects(all(type, record('a')), /Content-Type/)
  })
})

describe('router addresses', () => {
  const rules = { allowPrivate: false, allowHttp: false, ports: [443], isInside }
  const of = (text: string, more: Partial<AddressRules> = {}) => gatewayAddress(text, { ...rules, ...more })

  it('every form of an HTTPS gateway → its origin', () => {
    for (const text of [
      '/dns/gw.example/tcp/443/https',
      '/dns4/gw.example/tcp/443/https',
      '/dns6/gw.example/tcp/443/https',
      '/dns/gw.example/tcp/443/tls/http',
      '/dns/gw.example/https',
      '/dns/gw.example/tls/http',
      '/dns/gw.example/tcp/443/http',
      '/dns/GW.example/tcp/443/https/http-path/a%2Fb',
      '/dns/gw.example/https/p2p/12D3KooWRawPbxPtP1eZaJpumGnyWX2DcUyd3RQnydr3eAto4Az7',
      '/ip4/93.184.216.34/tcp/443/tls/sni/gw.example/http',
    ])
      assert.equal(of(text), 'https://gw.example', text)
    assert.equal(of('/ip4/93.184.216.34/tcp/443/https'), 'https://93.184.216.34')
    assert.equal(of('/ip6/2606:4700::1111/tcp/443/https'), 'https://[2606:4700::1111]')
  })

  it('not HTTP, or malformed → refused', () => {
    for (const text of [
      '',
      '/',
      'dns/gw.example/https',
      '/dns/gw.example',
      '/dns/gw.example/tcp/443',
      '/dns/gw.example/tcp/443/ws',
      '/dns/gw.example/udp/443/quic-v1',
      '/dns/user@gw.example/https',
      '/dns/user:pw@gw.example/https',
      '/dns/gw.example:8080/https',
      '/dns/gw.example?x/https',
      '/dns/gw.example#x/https',
      '/dns//https',
      '/dns/gw.example/tcp/0/https',
      '/dns/gw.example/tcp/65536/https',
      '/dns/gw.example/tcp/x/https',
      '/dnsaddr/gw.example/https',
      '/ip4/gw.example/https',
      '/ip4/1.2.3/https',
      '/ip6/fe80::1%eth0/https',
      '/ip6zone/x/ip6/::1/https',
      '/unix/x',
      '/dns/gw.example/https/ws',
      `/dns/${'a'.repeat(254)}/https`,
      '/ip4/93.184.216.34/tcp/443/tls/sni/user@x/http',
    ])
      assert.equal(of(text), undefined, text)
  })

  it('private literals, any spelling → refused', () => {
    for (const text of [
      '/ip4/127.0.0.1/tcp/443/https',
      '/ip4/10.1.2.3/tcp/443/https',
      '/ip4/169.254.169.254/tcp/443/https',
      '/ip4/100.64.0.1/https',
      '/ip4/0.0.0.0/https',
      '/ip4/192.88.99.1/https',
      '/ip4/203.0.113.9/https',
      '/ip6/::1/https',
      '/ip6/::ffff:127.0.0.1/https',
      '/ip6/::7f00:1/https',
      '/ip6/fd00::1/https',
      '/ip6/fe80::1/https',
      '/ip6/64:ff9b::7f00:1/https',
      '/ip6/64:ff9b:1::1/https',
      '/ip6/2002:7f00:1::/https',
      '/ip6/2001::1/https',
      '/ip6/fec0::1/https',
      '/ip6/2001:db8::1/https',
      '/dns/127.0.0.1/https',
      '/dns/127.1/https',
      '/dns/0x7f000001/https',
      '/dns/2130706433/https',
      '/dns/017700000001/https',
    ])
      assert.equal(of(text), undefined, text)
  })

  it('plain HTTP and other ports → only if allowed', () => {
    assert.equal(of('/dns/gw.example/tcp/80/http'), undefined)
    assert.equal(of('/dns/gw.example/tcp/80/http', { allowHttp: true }), 'http://gw.example')
    assert.equal(of('/dns/gw.example/tcp/8443/https'), undefined)
    assert.equal(of('/dns/gw.example/tcp/8443/https', { ports: 'any' }), 'https://gw.example:8443')
    assert.equal(of('/ip4/127.0.0.1/tcp/8080/http', { allowPrivate: true }), 'http://127.0.0.1:8080')
    assert.equal(of('/ip4/93.184.216.34/tcp/8080/http', { allowPrivate: true }), undefined)
  })
})
