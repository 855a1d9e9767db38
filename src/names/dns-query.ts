// One TXT look-up with its TTL, which node:dns does not tell: over UDP and TCP to the system's servers, or over HTTPS
// (RFC 8484). The same packet travels on all three.

import { randomInt } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { getServers } from 'node:dns'
import { connect, isIPv6 } from 'node:net'
import { type DecodedPacket, decode, encode, TRUNCATED_RESPONSE } from 'dns-packet'
import { request } from 'undici'
import { Failure } from '../failure.ts'

export type TxtAnswer = { readonly texts: readonly string[]; readonly ttlMs: number }

/** Resolves with no texts where the name exists without any or not at all. Rejects with a Failure when nobody could say. */
export type TxtLookup = (name: string, signal: AbortSignal) => Promise<TxtAnswer>

const mostAnswerBytes = 64 * 1024
const absentTtlMs = 30_000

const failed = (server: string, cause: unknown): Failure =>
  new Failure('broken', `the DNS server ${server} did not answer`, { source: 'upstream', cause })

const question = (name: string): Buffer =>
  Buffer.from(
    encode({ type: 'query', id: randomInt(1, 65_535), flags: 0x100, questions: [{ type: 'TXT', name, class: 'IN' }] }),
  )

function read(name: string, packet: DecodedPacket, server: string): TxtAnswer {
  const rcode = (packet as { rcode?: string }).rcode
  if (rcode !== 'NOERROR' && rcode !== 'NXDOMAIN') throw failed(server, new Error(`it answered ${rcode} for ${name}`))
  const found = (packet.answers ?? []).flatMap((answer) => (answer.type === 'TXT' ? [answer] : []))
  if (found.length === 0) return { texts: [], ttlMs: absentTtlMs }
  const texts = found.map(({ data }) =>
    [data]
      .flat()
      .map((part) => part.toString())
      .join(''),
  )
  return { texts, ttlMs: Math.min(...found.map(({ ttl }) => ttl ?? 0)) * 1000 }
}

/** RFC 8484. `url` is one the operator named; no redirect is followed. */
export function dnsOverHttps(url: string, userAgent: string): TxtLookup {
  return async (name, signal) => {
    try {
      const answer = await request(url, {
        method: 'POST',
        body: question(name),
        signal,
        headers: {
          accept: 'application/dns-message',
          'content-type': 'application/dns-message',
          'user-agent': userAgent,
        },
      })
      const length = Number(answer.headers['content-length'] ?? 0)
      if (answer.statusCode !== 200 || length > mostAnswerBytes) {
        await answer.body.dump()
        throw new Error(`status ${answer.statusCode}`)
      }
      const chunks: Uint8Array[] = []
      let bytes = 0
      for await (const chunk of answer.body as AsyncIterable<Uint8Array>) {
        bytes += chunk.byteLength
        if (bytes > mostAnswerBytes) throw new Error('the answer is too large')
        chunks.push(chunk)
      }
      return read(name, decode(Buffer.concat(chunks)), url)
    } catch (cause) {
      signal.throwIfAborted()
      throw cause instanceof Failure ? cause : failed(url, cause)
    }
  }
}

/** The servers of the system, or those given (`host` or `host:port`), one after another. */
export function plainDns(servers: readonly string[] = getServers(), timeoutMs = 2000): TxtLookup {
  return async (name, signal) => {
    let last: unknown = new Error('no DNS server is configured')
    for (const server of servers) {
      try {
        const [host, port] = endpoint(server)
        const own = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)])
        const packet = await overUdp(host, port, question(name), own)
        const isCut = ((packet as { flags?: number }).flags ?? 0) & TRUNCATED_RESPONSE
        return read(name, isCut ? await overTcp(host, port, question(name), own) : packet, server)
      } catch (error) {
        signal.throwIfAborted()
        last = error
      }
    }
    throw last instanceof Failure ? last : failed(servers.join(', '), last)
  }
}

function endpoint(server: string): [host: string, port: number] {
  if (isIPv6(server)) return [server, 53]
  const match = /^\[?([^\]]+?)\]?(?::(\d+))?$/.exec(server)
  return [match?.[1] ?? server, Number(match?.[2] ?? 53)]
}

function overUdp(host: string, port: number, packet: Buffer, signal: AbortSignal): Promise<DecodedPacket> {
  return new Promise((resolve, reject) => {
    const socket = createSocket(isIPv6(host) ? 'udp6' : 'udp4')
    const end = (settle: () => void) => {
      signal.removeEventListener('abort', leave)
      socket.close()
      settle()
    }
    const leave = () => end(() => reject(signal.reason))
    signal.addEventListener('abort', leave, { once: true })
    socket.once('error', (error) => end(() => reject(error)))
    socket.on('message', (message) => {
      // An answer to somebody else's question is not ours.
      if (message.length < 12 || message.readUInt16BE(0) !== packet.readUInt16BE(0)) return
      end(() => {
        try {
          resolve(decode(message))
        } catch (error) {
          reject(error)
        }
      })
    })
    socket.connect(port, host, () => socket.send(packet))
  })
}

function overTcp(host: string, port: number, packet: Buffer, signal: AbortSignal): Promise<DecodedPacket> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port })
    let held = Buffer.alloc(0)
    const end = (settle: () => void) => {
      signal.removeEventListener('abort', leave)
      socket.destroy()
      settle()
    }
    const leave = () => end(() => reject(signal.reason))
    signal.addEventListener('abort', leave, { once: true })
    socket.once('error', (error) => end(() => reject(error)))
    socket.once('close', () => end(() => reject(new Error('the connection was closed'))))
    socket.on('data', (chunk) => {
      held = Buffer.concat([held, chunk])
      if (held.length < 2 || held.length < 2 + held.readUInt16BE(0)) return
      end(() => {
        try {
          resolve(decode(held.subarray(2)))
        } catch (error) {
          reject(error)
        }
      })
    })
    const length = Buffer.alloc(2)
    length.writeUInt16BE(packet.length)
    socket.write(Buffer.concat([length, packet]))
  })
}
