// One TXT look-up with its TTL, which node:dns does not tell: over UDP and TCP to the system's servers, or over HTTPS
// (RFC 8484). The same packet travels on all three.

import { randomInt } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { getServers } from 'node:dns'
import { connect, isIPv6 } from 'node:net'
import { type DecodedPacket, decode, encode, TRUNCATED_RESPONSE } from 'dns-packet'
import { Agent, request } from 'undici'
import type { Clock } from '../clock.ts'
import { withDeadline } from '../deadline.ts'
import { Failure, isFailure } from '../failure.ts'

export type TxtAnswer = { readonly texts: readonly string[]; readonly ttlMs: number }

/** A server, or several that are as good as one. */
export interface TxtServer {
  readonly name: string
  /** No texts: the name exists without any, or not at all. Rejects with a Failure when nobody could say. */
  lookup(name: string, signal: AbortSignal): Promise<TxtAnswer>
  close(): Promise<void>
}

const mostAnswerBytes = 64 * 1024
const oneServerMs = 2_000

const failed = (server: string, cause: unknown): Failure =>
  new Failure('broken', `the DNS server ${server} did not answer`, { source: 'upstream', cause })

const question = (name: string, id: number): Buffer =>
  Buffer.from(encode({ type: 'query', id, flags: 0x100, questions: [{ type: 'TXT', name, class: 'IN' }] }))

function read(name: string, packet: DecodedPacket, server: string): TxtAnswer {
  const rcode = (packet as { rcode?: string }).rcode
  if (rcode !== 'NOERROR' && rcode !== 'NXDOMAIN') throw failed(server, new Error(`it answered ${rcode} for ${name}`))
  const [asked] = packet.questions ?? []
  if (asked && asked.name.toLowerCase() !== name.toLowerCase())
    throw failed(server, new Error('it answered another question'))
  const found = (packet.answers ?? []).flatMap((answer) => (answer.type === 'TXT' ? [answer] : []))
  if (found.length === 0) return { texts: [], ttlMs: 0 }
  const texts = found.map(({ data }) =>
    [data]
      .flat()
      .map((part) => part.toString())
      .join(''),
  )
  return { texts, ttlMs: Math.min(...found.map(({ ttl }) => ttl ?? 0)) * 1000 }
}

/** RFC 8484. `url` is one the operator named; no redirect is followed. */
export function dnsOverHttps(url: string, userAgent: string): TxtServer {
  const agent = new Agent({ connections: 4, headersTimeout: oneServerMs, bodyTimeout: oneServerMs })
  const ask = async (name: string, signal: AbortSignal): Promise<DecodedPacket> => {
    const answer = await request(url, {
      method: 'POST',
      body: question(name, 0),
      signal,
      dispatcher: agent,
      headers: {
        accept: 'application/dns-message',
        'content-type': 'application/dns-message',
        'user-agent': userAgent,
      },
    })
    const type = answer.headers['content-type']?.toString().split(';')[0]
    if (answer.statusCode !== 200 || type !== 'application/dns-message') {
      await answer.body.dump()
      throw new Error(`status ${answer.statusCode}, ${type ?? 'no type'}`)
    }
    const pieces: Uint8Array[] = []
    let bytes = 0
    for await (const piece of answer.body as AsyncIterable<Uint8Array>) {
      bytes += piece.byteLength
      if (bytes > mostAnswerBytes) throw new Error('the answer is too large')
      pieces.push(piece)
    }
    return decode(Buffer.concat(pieces))
  }
  return {
    name: new URL(url).host,
    async lookup(name, signal) {
      try {
        return read(name, await ask(name, signal), url)
      } catch (cause) {
        signal.throwIfAborted()
        throw isFailure(cause) ? cause : failed(url, cause)
      }
    },
    close: () => agent.destroy(),
  }
}

/** `host` or `host:port`; by default the servers of the system, as they are when they are asked. */
export function plainDns(servers: () => readonly string[], clock: Clock): TxtServer {
  async function one(server: string, name: string, signal: AbortSignal): Promise<TxtAnswer> {
    const [host, port] = endpoint(server)
    const query = question(name, randomInt(1, 65_535))
    const packet = await overUdp(host, port, query, signal)
    const isCut = ((packet as { flags?: number }).flags ?? 0) & TRUNCATED_RESPONSE
    return read(name, isCut ? await overTcp(host, port, query, signal) : packet, server)
  }
  return {
    name: 'dns',
    async lookup(name, signal) {
      let last: unknown = new Error('no DNS server is configured')
      for (const server of servers()) {
        const late = () => failed(server, new Error(`it said nothing for ${oneServerMs} ms`))
        try {
          return await withDeadline({ ms: oneServerMs, clock, signal, late }, (own) => one(server, name, own))
        } catch (error) {
          signal.throwIfAborted()
          last = error
        }
      }
      throw isFailure(last) ? last : failed(servers().join(', '), last)
    },
    close: async () => {},
  }
}

/** `system`, or addresses: https://…/dns-query, or a host with or without a port. The first that can say decides. */
export function txtServers(
  wanted: 'system' | readonly string[],
  { userAgent, clock }: { readonly userAgent: string; readonly clock: Clock },
): TxtServer[] {
  if (wanted === 'system') return [plainDns(getServers, clock)]
  return wanted.map((one) =>
    one.startsWith('https:') || one.startsWith('http:') ? dnsOverHttps(one, userAgent) : plainDns(() => [one], clock),
  )
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
    socket.connect(port, host, () => {
      if (!signal.aborted) socket.send(packet)
    })
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
