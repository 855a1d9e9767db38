// A TXT lookup with its TTL, which node:dns does not expose: over UDP and TCP to the system's
// servers, or over HTTPS (RFC 8484), with the same packet.
import { randomInt } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { getServers } from 'node:dns'
import { connect, isIPv6 } from 'node:net'
import { type DecodedPacket, decode, encode, TRUNCATED_RESPONSE } from 'dns-packet'
import { Agent, request } from 'undici'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure, isFailure } from '../core/failure.ts'

/** A server, or several equivalent ones. */
export interface TxtServer {
  readonly name: string
  /**
   * Empty if the name has no TXT record or does not exist. Rejects with a Failure if no server
   * answered.
   */
  lookup(name: string, signal: AbortSignal): Promise<TxtAnswer>
  close(): Promise<void>
}

const maxAnswerBytes = 64 * 1024
const oneServerMs = 2_000

const failed = (server: string, cause: unknown): Failure =>
  new Failure('upstream-error', `the DNS server ${server} did not answer`, { source: 'upstream', cause })

/** The deadline of one server, for connecting and the complete response. */
function inTime<T>(
  server: string,
  { clock, signal }: { readonly clock: Clock; readonly signal: AbortSignal },
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const late = () => failed(server, new Error(`it did not answer within ${oneServerMs} ms`))
  return withDeadline({ ms: oneServerMs, clock, signal, late }, work)
}

/** DNS over HTTPS (RFC 8484). Redirects are not followed, because the operator chose `url`. */
function dnsOverHttps(url: string, userAgent: string, clock: Clock): TxtServer {
  const agent = new Agent({
    connections: 4,
    connect: { timeout: oneServerMs },
    headersTimeout: oneServerMs,
    bodyTimeout: oneServerMs,
  })
  const ask = async (question: Buffer, signal: AbortSignal): Promise<Buffer> => {
    const answer = await request(url, {
      method: 'POST',
      body: question,
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
      if (bytes > maxAnswerBytes) throw new Error('the answer is too large')
      pieces.push(piece)
    }
    return Buffer.concat(pieces)
  }
  // Only the host is shown: path and query may contain the key of an account.
  const { host } = new URL(url)
  return {
    name: host,
    async lookup(name, signal) {
      try {
        const question = txtQuestion(name, 0)
        const bytes = await inTime(host, { clock, signal }, (own) => ask(question, own))
        return complete(txtAnswer(name, question, bytes))
      } catch (cause) {
        signal.throwIfAborted()
        throw isFailure(cause) ? cause : failed(host, cause)
      }
    },
    close: () => agent.destroy(),
  }
}

/** `host` or `host:port`. Default: the system's servers at the time of the lookup. */
function plainDns(servers: () => readonly string[], clock: Clock): TxtServer {
  async function one(server: string, name: string, signal: AbortSignal): Promise<TxtAnswer> {
    const [host, port] = endpoint(server)
    const query = txtQuestion(name, randomInt(0, 65_536))
    const answer = txtAnswer(name, query, await overUdp(host, port, query, signal))
    return answer === 'cut' ? complete(txtAnswer(name, query, await overTcp(host, port, query, signal))) : answer
  }
  return {
    name: 'dns',
    async lookup(name, signal) {
      let last: unknown = new Error('no DNS server is configured')
      for (const server of servers()) {
        try {
          return await inTime(server, { clock, signal }, (own) => one(server, name, own))
        } catch (error) {
          signal.throwIfAborted()
          last = isFailure(error) ? error : failed(server, error)
        }
      }
      throw isFailure(last) ? last : failed('of the system', last)
    },
    close: async () => {},
  }
}

/**
 * `system`, or addresses: https://…/dns-query, or a host with or without a port. The first server
 * that responds decides.
 */
export function txtServers(
  wanted: 'system' | readonly string[],
  { userAgent, clock }: { readonly userAgent: string; readonly clock: Clock },
): TxtServer[] {
  if (wanted === 'system') return [plainDns(getServers, clock)]
  return wanted.map((one) =>
    one.startsWith('https:') || one.startsWith('http:')
      ? dnsOverHttps(one, userAgent, clock)
      : plainDns(() => [one], clock),
  )
}

/** HTTPS and TCP have no size limit: a truncated response may lack the relevant record. */
function complete(answer: TxtAnswer | 'cut'): TxtAnswer {
  if (answer === 'cut') throw new Error('it cut its answer short')
  return answer
}

function endpoint(server: string): [host: string, port: number] {
  if (isIPv6(server)) return [server, 53]
  const match = /^\[?([^\]]+?)\]?(?::(\d+))?$/.exec(server)
  return [match?.[1] ?? server, Number(match?.[2] ?? 53)]
}

/**
 * A connected socket receives from its server only: packets from other addresses or ports never
 * reach it.
 */
function overUdp(host: string, port: number, question: Buffer, signal: AbortSignal): Promise<Buffer> {
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
    socket.on('message', (bytes) => {
      if (hasIdOf(question, bytes)) end(() => resolve(bytes))
    })
    // Only this callback reports an unreachable server (an IPv6 address without IPv6).
    socket.connect(port, host, (error?: Error) => {
      if (signal.aborted) return
      if (error) end(() => reject(error))
      else socket.send(question)
    })
  })
}

function overTcp(host: string, port: number, question: Buffer, signal: AbortSignal): Promise<Buffer> {
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
      const size = held.length < 2 ? Number.POSITIVE_INFINITY : 2 + held.readUInt16BE(0)
      if (held.length >= size) end(() => resolve(held.subarray(2, size)))
    })
    const length = Buffer.alloc(2)
    length.writeUInt16BE(question.length)
    socket.write(Buffer.concat([length, question]))
  })
}

type TxtAnswer = { readonly texts: readonly string[]; readonly ttlMs: number }

const recursionDesired = 0x100
const responseBit = 0x80

const txtQuestion = (name: string, id: number): Buffer =>
  Buffer.from(encode({ type: 'query', id, flags: recursionDesired, questions: [{ type: 'TXT', name, class: 'IN' }] }))

/**
 * True if a packet has the id of this query. Others on the same socket are forged, or late
 * responses to another.
 */
const hasIdOf = (question: Buffer, packet: Buffer): boolean =>
  packet.length >= 12 && packet.readUInt16BE(0) === question.readUInt16BE(0)

/** `cut`: truncated, so it must be requested over another transport. */
function txtAnswer(name: string, question: Buffer, bytes: Buffer): TxtAnswer | 'cut' {
  if (!hasIdOf(question, bytes)) throw new Error('it answered with the number of another question')
  // An echoed query has no records, and must not look like a name without any.
  if (((bytes[2] ?? 0) & responseBit) === 0) throw new Error('it sent a question back')
  const packet: DecodedPacket = decode(bytes)
  const { questions = [], answers = [], rcode, flags = 0 } = packet as DecodedPacket & { readonly rcode?: string }
  if (rcode !== 'NOERROR' && rcode !== 'NXDOMAIN') throw new Error(`it answered ${rcode} for ${name}`)
  const [asked] = questions
  if (questions.length !== 1 || asked?.type !== 'TXT' || !isSame(asked.name, name))
    throw new Error('it answered another question')
  if (flags & TRUNCATED_RESPONSE) return 'cut'

  // Follows CNAMEs; the shortest TTL applies.
  const aliases = new Map(
    answers.flatMap((one) => (one.type === 'CNAME' ? [[one.name.toLowerCase(), one] as const] : [])),
  )
  const ttls: number[] = []
  let owner = name.toLowerCase()
  for (let alias = aliases.get(owner); alias; alias = aliases.get(owner)) {
    aliases.delete(owner)
    ttls.push(alias.ttl ?? 0)
    owner = alias.data.toLowerCase()
  }
  const found = answers.flatMap((one) => (one.type === 'TXT' && isSame(one.name, owner) ? [one] : []))
  if (found.length === 0) return { texts: [], ttlMs: 0 }
  ttls.push(...found.map(({ ttl }) => ttl ?? 0))
  const texts = found.map(({ data }) =>
    [data]
      .flat()
      .map((part) => part.toString())
      .join(''),
  )
  return { texts, ttlMs: Math.min(...ttls) * 1000 }
}

const isSame = (one: string, other: string): boolean => one.toLowerCase() === other.toLowerCase()
