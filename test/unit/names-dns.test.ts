// DNSLinks, as DNS servers of every kind tell them: well, late, cut, wrong or not at all.
import assert from 'node:assert/strict'
import { after, before, beforeEach, describe, test } from 'node:test'
import { systemClock } from '../../src/clock.ts'
import { type Failure, isFailure } from '../../src/failure.ts'
import { txtServers } from '../../src/names/dns-query.ts'
import { createDnsLinks, isDomain } from '../../src/names/dnslink.ts'
import { createAccount } from '../../src/observe/account.ts'
import { type DnsServer, startDnsServer } from '../support/dns-server.ts'

let dns: DnsServer
let other: DnsServer
before(async () => {
  dns = await startDnsServer()
  other = await startDnsServer()
})
after(async () => {
  await dns.close()
  await other.close()
})
beforeEach(() => {
  for (const one of [dns, other]) {
    one.texts.clear()
    one.asked.length = 0
    one.ttl = 60
    one.fault = undefined
  }
})

const make = (dns: readonly string[], fixed: Record<string, string> = {}) =>
  createDnsLinks({
    servers: txtServers(dns, { userAgent: 'cidgate/test', clock: systemClock }),
    fixed,
    deadlineMs: 5_000,
    ttl: { leastMs: 1_000, mostMs: 3_600_000 },
    notFoundMs: 5_000,
    most: 10,
    clock: systemClock,
  })
const signal = () => new AbortController().signal
const failure = (work: Promise<unknown>): Promise<Failure> =>
  work.then(
    () => assert.fail('it should have failed'),
    (error) => (isFailure(error) ? error : assert.fail(String(error))),
  )

describe('DNSLink', () => {
  for (const [over, address] of [
    ['UDP', () => dns.address],
    ['HTTPS', () => dns.url],
  ] as const) {
    test(`over ${over}: the record, its TTL, and who said so`, async () => {
      dns.texts.set('_dnslink.docs.example', ['something else', 'dnslink=/ipfs/bafkqaaa/a b'])
      dns.ttl = 7
      const links = make([address()])
      const account = createAccount()
      const { value, freshMs } = await links.resolve('Docs.Example.', { signal: signal(), account })
      assert.deepEqual([value, freshMs > 6_000 && freshMs <= 7_000], ['/ipfs/bafkqaaa/a b', true])
      assert.equal(account.attempts[0]?.outcome, 'record')
      assert.equal((await links.resolve('docs.example', { signal: signal() })).via, 'memory')
      assert.equal(dns.asked.length, 1)
      await links.close()
    })

    test(`over ${over}: no name, no record of this kind, and a server that fails`, async () => {
      dns.texts.set('_dnslink.other.example', ['v=spf1', 'dnslink=nonsense', 'dnslink=/http/x'])
      const links = make([address()])
      const kinds = await Promise.all(
        ['none.example', 'other.example'].map(
          async (name) => (await failure(links.resolve(name, { signal: signal() }))).kind,
        ),
      )
      assert.deepEqual(kinds, ['not-found', 'not-found'])
      for (const fault of ['servfail', 'foreign', 'garbage'] as const) {
        dns.fault = fault
        assert.equal((await failure(links.resolve(`${fault}.example`, { signal: signal() }))).kind, 'unavailable')
      }
      await links.close()
    })

    test(`over ${over}: an abort stops at once, and the last who leaves stops the question`, async () => {
      dns.fault = 'silent'
      const links = make([address()])
      const leaving = new AbortController()
      const work = failure(links.resolve('slow.example', { signal: leaving.signal }))
      setTimeout(() => leaving.abort(new Error('left')), 30)
      await work.catch((error: Error) => assert.match(error.message, /left/))
      assert.equal(links.stats().flights, 0)
      await links.close()
    })
  }

  test('what UDP cuts is asked for again over TCP, which sends it in pieces', async () => {
    dns.texts.set('_dnslink.long.example', [`dnslink=/ipfs/bafkqaaa/${'x'.repeat(200)}`])
    dns.fault = 'truncate'
    const links = make([dns.address])
    assert.match((await links.resolve('long.example', { signal: signal() })).value, /x{200}$/)
    assert.deepEqual(
      dns.asked.map((line) => line.slice(0, 3)),
      ['udp', 'tcp'],
    )
    await links.close()
  })

  test('a server that is silent is passed over for the next one', async () => {
    dns.fault = 'silent'
    other.texts.set('_dnslink.docs.example', ['dnslink=/ipns/b.example'])
    const links = make([dns.address, other.url])
    const account = createAccount()
    assert.equal((await links.resolve('docs.example', { signal: signal(), account })).value, '/ipns/b.example')
    assert.deepEqual(
      account.attempts.map(({ outcome }) => outcome),
      ['broken', 'record'],
    )
    await links.close()
  })

  test('of several records the same one is meant every time', async () => {
    dns.texts.set('_dnslink.docs.example', ['dnslink=/ipfs/bafkqacc', 'dnslink=/ipfs/bafkqabb'])
    const links = make([dns.address])
    assert.equal((await links.resolve('docs.example', { signal: signal() })).value, '/ipfs/bafkqabb')
    await links.close()
  })

  test('names of the configuration are asked of nobody', async () => {
    const links = make([dns.address], { 'House.example': '/ipfs/bafkqaaa' })
    assert.equal((await links.resolve('house.EXAMPLE', { signal: signal() })).value, '/ipfs/bafkqaaa')
    assert.deepEqual(dns.asked, [])
    await links.close()
  })

  test('what is no domain is asked of nobody', async () => {
    const links = make([dns.address])
    for (const name of [
      'nodots',
      '',
      '.',
      '-a.example',
      'a..example',
      'a b.example',
      `${'a'.repeat(64)}.example`,
      'ü.example',
    ]) {
      assert.ok(!isDomain(name), name)
      assert.equal((await failure(links.resolve(name, { signal: signal() }))).kind, 'malformed')
    }
    for (const name of ['a.example', '_x.a-b.example', 'xn--bcher-kva.example', 'a.example.'])
      assert.ok(isDomain(name), name)
    assert.deepEqual(dns.asked, [])
    await links.close()
  })
})
