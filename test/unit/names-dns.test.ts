// DNSLinks, as DNS servers of every kind tell them: well, late, cut, wrong or not at all.
import assert from 'node:assert/strict'
import { createSocket } from 'node:dgram'
import { createServer as createHttpServer } from 'node:http'
import { type AddressInfo, createServer } from 'node:net'
import { after, before, beforeEach, describe, test } from 'node:test'
import { type DecodedPacket, decode, encode, type Packet } from 'dns-packet'
import { type Clock, systemClock } from '../../src/core/clock.ts'
import { type Failure, isFailure } from '../../src/core/failure.ts'
import { txtServers } from '../../src/names/dns-query.ts'
import { createDnsLinks, isDomain } from '../../src/names/dnslink.ts'
import { RequestRecord } from '../../src/observe/requests.ts'
import { type DnsServer, startDnsServer } from '../support/dns-server.ts'
import { patientClock } from '../support/shifted-clock.ts'

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

/** On a busy machine a server of this file answers late, and records grow old on the way: here neither counts. */
const began = Date.now()
const patient: Clock = { ...patientClock, now: () => began }

/** The two seconds of the first server are a hundred milliseconds, and those of the next one, which answers, a minute. */
function hasty(): Clock {
  let servers = 0
  const after: Clock['after'] = (ms, action) =>
    ms === 2_000 && servers++ === 0 ? systemClock.after(100, action) : patient.after(ms, action)
  return { ...patient, after }
}

const make = (dns: readonly string[], fixed: Record<string, string> = {}, clock = patient) =>
  createDnsLinks({
    servers: txtServers(dns, { userAgent: 'cidgate/test', clock }),
    fixed,
    deadlineMs: 5_000,
    ttl: { minMs: 1_000, maxMs: 3_600_000 },
    notFoundMs: 5_000,
    maxEntries: 10,
    clock,
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
    test(`over ${over}: record, TTL and source`, async () => {
      dns.texts.set('_dnslink.docs.example', ['something else', 'dnslink=/ipfs/bafkqaaa/a b'])
      dns.ttl = 7
      const links = make([address()])
      const requestRecord = new RequestRecord()
      const { value, freshMs } = await links.resolve('Docs.Example.', { signal: signal(), requestRecord })
      assert.deepEqual([value, freshMs > 6_000 && freshMs <= 7_000], ['/ipfs/bafkqaaa/a b', true])
      assert.equal(requestRecord.attempts[0]?.outcome, 'record')
      assert.equal((await links.resolve('docs.example', { signal: signal() })).via, 'memory')
      assert.deepEqual(dns.asked, [`${over.toLowerCase()} TXT _dnslink.docs.example`])
      await links.close()
    })

    test(`over ${over}: missing name, missing type, failing server`, async () => {
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

    test(`over ${over}: abort stops; last client leaving stops the query`, async () => {
      dns.fault = 'silent'
      const links = make([address()])
      const leaving = new AbortController()
      const work = failure(links.resolve('slow.example', { signal: leaving.signal }))
      // A question that is on its way when this test ends would be among those of the next one.
      while (dns.asked.length === 0) await new Promise((resolve) => setImmediate(resolve))
      leaving.abort(new Error('left'))
      await work.catch((error: Error) => assert.match(error.message, /left/))
      assert.equal(links.stats().flights, 0)
      await links.close()
    })
  }

  test('HTTPS failure names only the host', async () => {
    const { host, origin } = new URL(dns.url)
    dns.fault = 'garbage'
    const [server] = txtServers([`${origin}/an-account/dns-query?key=hush`], {
      userAgent: 'cidgate/test',
      clock: patient,
    })
    const { message } = await failure(server?.lookup('_dnslink.docs.example', signal()) ?? assert.fail())
    assert.equal(message, `the DNS server ${host} did not answer`)
    await server?.close()
  })

  test('UDP truncated → TCP, in segments', async () => {
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

  test('silent server → next one', async () => {
    dns.fault = 'silent'
    other.texts.set('_dnslink.docs.example', ['dnslink=/ipns/b.example'])
    const links = make([dns.address, other.url], {}, hasty())
    const requestRecord = new RequestRecord()
    assert.equal((await links.resolve('docs.example', { signal: signal(), requestRecord })).value, '/ipns/b.example')
    assert.deepEqual(
      requestRecord.attempts.map(({ outcome }) => outcome),
      ['upstream-error', 'record'],
    )
    await links.close()
  })

  // As the DNSLink standard has it for one namespace; of several namespaces a gateway of content means content first.
  test('several records → first in alphabetical order, trimmed', async () => {
    const several = {
      'same.example': ['dnslink=/ipfs/bafkqacc', 'v=spf1 -all', 'dnslink= /ipfs/bafkqabb '],
      'mixed.example': ['dnslink=/ipns/a.example', 'dnslink=/ipfs/bafkqacc', 'dnslink=/swarm/aa'],
      'doubled.example': ['dnslink=/ipfs/bafkqabb', 'dnslink=/ipfs/bafkqabb'],
    }
    const links = make([dns.address])
    const values: string[] = []
    for (const [name, texts] of Object.entries(several)) {
      dns.texts.set(`_dnslink.${name}`, texts)
      values.push((await links.resolve(name, { signal: signal() })).value)
    }
    assert.deepEqual(values, ['/ipfs/bafkqabb', '/ipfs/bafkqacc', '/ipfs/bafkqabb'])
    await links.close()
  })

  test('flood of invented names → bounded sockets, rest refused', async () => {
    dns.fault = 'silent'
    const timers = new Set<{ readonly ms: number; readonly action: () => void }>()
    const after = (ms: number, action: () => void) => {
      const timer = { ms, action }
      timers.add(timer)
      return () => timers.delete(timer)
    }
    // All timers of one length ring together, whatever the load of the machine.
    const ring = (length: number) => {
      for (const timer of [...timers]) if (timer.ms === length && timers.delete(timer)) timer.action()
    }
    const links = make([dns.address], {}, { ...systemClock, after })
    const names = Array.from({ length: 600 }, (_, index) => `h${index}.example`)
    const refused = names.map(async (name) => (await failure(links.resolve(name, { signal: signal() }))).kind)
    // A look-up waits a second for its turn, and two seconds for the server.
    for (const ms of [1_000, 2_000]) {
      await new Promise((resolve) => setImmediate(resolve))
      ring(ms)
    }
    const kinds = await Promise.all(refused)
    const many = (kind: string) => kinds.filter((one) => one === kind).length
    assert.deepEqual([many('unavailable'), many('overloaded')], [100, 500])
    // The last of them may still be on their way.
    assert.ok(dns.asked.length <= 100, `${dns.asked.length}`)
    dns.fault = undefined
    dns.texts.set('_dnslink.h599.example', ['dnslink=/ipfs/bafkqaaa'])
    assert.equal((await links.resolve('h599.example', { signal: signal() })).value, '/ipfs/bafkqaaa')
    // Asked again at once, the server would say that there is no such name.
    assert.equal((await failure(links.resolve('h99.example', { signal: signal() }))).kind, 'unavailable')
    assert.ok(dns.asked.length <= 101, `${dns.asked.length}`)
    await links.close()
  })

  test('invalid domain → no lookup', async () => {
    const links = make([dns.address])
    for (const name of [
      'nodots',
      '',
      '.',
      '-a.example',
      'a..example',
      'a b.example',
      `${'a'.repeat(64)}.example`,
      `${'a.'.repeat(119)}example`,
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

describe('faulty DNS servers', () => {
  const closers: (() => unknown)[] = []
  after(() => Promise.all(closers.map((close) => close())))
  const record = 'dnslink=/ipfs/bafkqaaa'
  const packet = ({ id, questions }: DecodedPacket, more: Partial<Packet> = {}): Buffer => {
    const name = questions?.[0]?.name ?? ''
    const answers = [{ type: 'TXT', name, ttl: 60, data: record }] as const
    return Buffer.from(
      encode({ type: 'response', id: id ?? 0, questions: questions ?? [], answers: [...answers], ...more }),
    )
  }
  /** Answers over UDP with what `reply` makes of the question, one datagram after another. */
  const odd = async (reply: (question: DecodedPacket, bytes: Buffer) => readonly Buffer[]): Promise<string> => {
    const socket = createSocket('udp4')
    socket.on('message', (bytes, { port, address }) => {
      for (const datagram of reply(decode(bytes), bytes)) socket.send(datagram, port, address)
    })
    await new Promise<void>((resolve) => socket.bind(0, '127.0.0.1', resolve))
    closers.push(() => socket.close())
    return `127.0.0.1:${socket.address().port}`
  }
  const linkOf = async (servers: readonly string[], clock = patient): Promise<{ value: string; freshMs: number }> => {
    const links = make(servers, {}, clock)
    closers.push(links.close)
    return links.resolve('docs.example', { signal: signal() })
  }
  const listen = async (server: ReturnType<typeof createServer>): Promise<number> => {
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    closers.push(() => server.close())
    return (server.address() as AddressInfo).port
  }

  test('DoH server stalls in TLS or trickles → skipped in time', async () => {
    dns.texts.set('_dnslink.docs.example', [record])
    const hole = createServer((socket) => {
      socket.on('error', () => {})
      closers.push(() => socket.destroy())
    })
    const trickle = createHttpServer((_request, response) => {
      response.writeHead(200, { 'content-type': 'application/dns-message' })
      const drops = setInterval(() => response.write('.'), 10).unref()
      response.once('close', () => clearInterval(drops))
    })
    for (const url of [`https://127.0.0.1:${await listen(hole)}/`, `http://127.0.0.1:${await listen(trickle)}/`])
      assert.equal((await linkOf([url, dns.address], hasty())).value, '/ipfs/bafkqaaa')
  })

  test('server without a route → others not delayed', async () => {
    dns.texts.set('_dnslink.docs.example', [record])
    assert.equal((await linkOf(['255.255.255.255', dns.address])).value, '/ipfs/bafkqaaa')
  })

  test('echoed query → not taken for an empty answer', async () => {
    const echo = await odd((_question, bytes) => [bytes])
    assert.equal((await failure(linkOf([echo]))).kind, 'unavailable')
    const none = await odd((question) => [packet(question, { questions: [], answers: [] })])
    assert.equal((await failure(linkOf([none]))).kind, 'unavailable')
    dns.texts.set('_dnslink.docs.example', [record])
    assert.equal((await linkOf([echo, none, dns.address])).value, '/ipfs/bafkqaaa')
  })

  test('forged packets (id, port, name) → ignored', async () => {
    const forged = (question: DecodedPacket, data: string, more: Partial<Packet> = {}) =>
      packet(question, { answers: [{ type: 'TXT', name: question.questions?.[0]?.name ?? '', ttl: 9, data }], ...more })
    const stranger = createSocket('udp4')
    closers.push(() => stranger.close())
    const server = createSocket('udp4')
    closers.push(() => server.close())
    server.on('message', (bytes, { port, address }) => {
      const question = decode(bytes)
      stranger.send(forged(question, 'dnslink=/ipfs/bafkqabb'), port, address, () => {
        server.send(
          forged(question, 'dnslink=/ipfs/bafkqabb', { id: ((question.id ?? 0) + 1) & 0xffff }),
          port,
          address,
        )
        const foreign = {
          type: 'TXT',
          name: '_dnslink.elsewhere.example',
          ttl: 9,
          data: 'dnslink=/ipfs/aaa',
        } as const
        const own = { type: 'TXT', name: question.questions?.[0]?.name ?? '', ttl: 9, data: record } as const
        server.send(packet(question, { answers: [foreign, own] }), port, address)
      })
    })
    await new Promise<void>((resolve) => server.bind(0, '127.0.0.1', resolve))
    assert.equal((await linkOf([`127.0.0.1:${server.address().port}`])).value, '/ipfs/bafkqaaa')
  })

  test('CNAME bounds the TTL; CNAME loop → no record', async () => {
    const chain = (ttls: readonly [number, number, number]) =>
      odd((question) => [
        packet(question, {
          answers: [
            { type: 'TXT', name: 'b.example', ttl: ttls[2], data: record },
            { type: 'CNAME', name: 'A.example', ttl: ttls[1], data: 'b.example' },
            { type: 'CNAME', name: question.questions?.[0]?.name ?? '', ttl: ttls[0], data: 'a.Example' },
          ],
        }),
      ])
    for (const [ttls, expected] of [
      [[5, 3600, 3600], 5_000],
      [[3600, 7, 3600], 7_000],
      [[3600, 3600, 9], 9_000],
    ] as const) {
      const { value, freshMs } = await linkOf([await chain(ttls)])
      assert.deepEqual([value, Math.ceil(freshMs / 1000) * 1000], ['/ipfs/bafkqaaa', expected])
    }
    const circle = await odd((question) => [
      packet(question, {
        answers: [
          { type: 'CNAME', name: '_dnslink.docs.example', ttl: 9, data: 'b.example' },
          { type: 'CNAME', name: 'b.example', ttl: 9, data: '_dnslink.docs.example' },
        ],
      }),
    ])
    assert.equal((await failure(linkOf([circle]))).kind, 'not-found')
  })

  test('large datagram → complete; truncated → TCP', async () => {
    const large = await odd((question) => {
      const name = question.questions?.[0]?.name ?? ''
      const data = ['x'.repeat(250), record].map((text) => ({ type: 'TXT', name, ttl: 9, data: text }) as const)
      return [
        packet(question, { answers: [...Array.from({ length: 20 }, () => data[0]), data[1]] as Packet['answers'] }),
      ]
    })
    assert.equal((await linkOf([large])).value, '/ipfs/bafkqaaa')
    // Nobody listens on TCP there.
    const cut = await odd((question) => [packet(question, { flags: 0x200, answers: [] })])
    assert.equal((await failure(linkOf([cut]))).kind, 'unavailable')
    const overHttps = createHttpServer((request, response) => {
      request.once('data', (bytes: Buffer) => {
        response.writeHead(200, { 'content-type': 'application/dns-message' })
        response.end(packet(decode(bytes), { flags: 0x200, answers: [] }))
      })
    })
    const port = await listen(overHttps)
    assert.equal((await failure(linkOf([`http://127.0.0.1:${port}/`]))).kind, 'unavailable')
  })
})
