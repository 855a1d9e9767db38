// `cidgate reach`: tests if others can find what this gateway holds. Asks as they do, by the public
// address, and names the first obstacle.
import { randomBytes } from 'node:crypto'
import { isIP } from 'node:net'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { Agent, buildConnector, request } from 'undici'
import { readHead } from '../../announce/advertisement.ts'
import { type Config, loadConfig } from '../../config/load.ts'
import { codec, hash, maxBlockBytes, parseCid, proves } from '../../core/cid.ts'
import { systemClock } from '../../core/clock.ts'
import { wordsOf } from '../../core/failure.ts'
import { readPeers } from '../../routing/answer.ts'
import { openIndexer, openRouter } from '../../wiring/backends.ts'
import { type Given, UsageError } from '../command.ts'

/** The result of a check: passed, failed with the next step, or a note. */
type Said = { readonly name: string; readonly ok: boolean; readonly why: string }

/** Kubo and rainbow refuse a response with more, as HTTP/2 counts header sizes. */
const maxHeaderBytes = 2048
const perHeaderBytes = 32
const callMs = 10_000
/**
 * A slower miss means that the gateway searches upstreams, and other nodes wait at most five
 * seconds.
 */
const missMs = 2_000
const rawType = 'application/vnd.ipld.raw'

type Fetched = {
  readonly status: number
  readonly protocol: string
  readonly headerBytes: number
  readonly bytes: Uint8Array
  readonly location: string | undefined
}

export async function reachCommand({ values, io }: Given, named: string): Promise<number> {
  const cid = parseCid(named.replace(/^\/ipfs\/|^ipfs:\/\//, ''))
  if (!cid) throw new UsageError(`${named} is no CID`)
  const config = loadConfig(typeof values['config'] === 'string' ? values['config'] : undefined)
  const all: Said[] = []
  for await (const said of checks(cid, config)) {
    all.push(said)
    const line = `${said.ok ? 'ok  ' : 'bad '} ${said.name}: ${said.why}`
    io.stdout.write(`${values['json'] ? JSON.stringify(said) : line}\n`)
  }
  const first = all.find(({ ok }) => !ok)
  if (first && !values['json']) io.stdout.write(`first fault: ${first.name}: ${first.why}\n`)
  return first ? 1 : 0
}

async function* checks(cid: CID, config: Config): AsyncGenerator<Said> {
  const { public: address } = config
  if (address === undefined)
    return yield bad('public', 'it is not set: set it to the https address by which others reach this gateway')
  const origin = new URL(address)
  yield addressCheck(origin)
  const routed = await ask('router', () => providersAt(origin, cid))
  yield routed.said ??
    (routed.value?.peerId === undefined
      ? bad('router', `${address} names no gateway for it: it is not pinned on the disk of this gateway, or denied`)
      : ok('router', `${address} names this gateway, as ${routed.value.peerId}`))
  yield* fetchChecks(origin, cid)
  const peerId = routed.value?.peerId
  if (config.announce !== false && peerId !== undefined) yield* indexerChecks(origin, cid, peerId, config)
  yield* routerChecks(origin, cid, config)
}

function addressCheck({ protocol, hostname, origin }: URL): Said {
  const isLiteral = isIP(hostname.replace(/^\[|\]$/g, '')) !== 0
  if (protocol === 'https:') return ok('public', origin)
  if (isLiteral) return ok('public', `${origin}; plain HTTP works only for nodes on this network`)
  return bad('public', `${origin} is plain HTTP to a name, which Kubo leaves out without a word: put TLS in front`)
}

async function* fetchChecks(origin: URL, cid: CID): AsyncGenerator<Said> {
  const got = await ask('block', () => blockAt(origin, cid))
  if (got.said || !got.value) return yield got.said ?? bad('block', 'no answer')
  const { status, protocol, headerBytes, bytes, location } = got.value
  if (origin.protocol === 'https:')
    yield protocol === 'h2'
      ? ok('http', 'HTTP/2')
      : bad('http', `${protocol}: Kubo requires HTTP/2; enable it in the proxy (nginx: http2 on)`)
  if (location !== undefined)
    return yield bad(
      'block',
      `${status} to ${location}: other nodes do not follow redirects; serve the content under ${origin.origin}`,
    )
  if (status !== 200) return yield bad('block', `${origin.origin} responds ${status} instead of the block`)
  if (!proves(cid, bytes)) return yield bad('block', 'its bytes do not hash to the CID')
  if (bytes.byteLength > maxBlockBytes)
    return yield bad('block', `it has ${bytes.byteLength} bytes, and 2 MiB is the most`)
  yield ok('block', `${bytes.byteLength} bytes, proved`)
  yield headerBytes <= maxHeaderBytes
    ? ok('headers', `${headerBytes} bytes`)
    : bad(
        'headers',
        `${headerBytes} bytes, above Kubo's limit of ${maxHeaderBytes}: send fewer from the proxy, or use a provider host`,
      )
  const digest = createDigest(hash.sha256, randomBytes(32))
  const began = performance.now()
  const miss = await ask('miss', () => blockAt(origin, CID.createV1(codec.raw, digest)))
  const ms = Math.round(performance.now() - began)
  yield miss.said ??
    (miss.value?.status === 404 && ms < missMs
      ? ok('miss', `404 after ${ms} ms`)
      : bad(
          'miss',
          `${miss.value?.status} after ${ms} ms: each node that knows this gateway asks it for all it wants; set hosts.${origin.hostname}.provider`,
        ))
}

async function* indexerChecks(
  origin: URL,
  cid: CID,
  peerId: string,
  { announce, retrieval }: Config,
): AsyncGenerator<Said> {
  if (announce === false) return
  const head = await ask('head', async () => {
    const { status, bytes } = await fetchAt(new URL('/ipni/v1/ad/head', origin), {})
    if (status === 204) return undefined
    if (status !== 200) throw new Error(`it answers with ${status}`)
    return readHead(bytes, peerId).toString()
  })
  if (head.said) {
    const why = /pubkey/.test(head.said.why)
      ? 'another instance signs under this name: only one may announce'
      : head.said.why
    return yield bad('head', why)
  }
  if (head.value === undefined)
    return yield bad('head', 'nothing is published yet: wait for the next batch (announce.every)')
  yield ok('head', head.value)
  const { userAgent } = retrieval
  for (const entry of announce.indexers) {
    const indexer = openIndexer(entry, { userAgent, clock: systemClock })
    const name = `indexer ${indexer.name}`
    const known = await ask(name, () => indexer.provider(peerId, AbortSignal.timeout(callMs)))
    if (known.said) yield known.said
    else if (known.value?.error) yield bad(name, known.value.error)
    else if (known.value?.last !== head.value)
      yield bad(
        name,
        `it has not taken the newest advertisement yet${known.value ? '' : ', and does not know this gateway'}: wait, and check cidgate status`,
      )
    else {
      // Asked last: before an indexer has the advertisement, its cache would keep the negative
      // answer for a while.
      const found = await ask(name, () => indexer.finds(cid, peerId, AbortSignal.timeout(callMs)))
      yield found.said ??
        (found.value
          ? ok(name, 'it names this gateway')
          : bad(
              name,
              'it does not name this gateway for it: is it a root that was uploaded? Else set announce.entries: blocks',
            ))
    }
    await indexer.close()
  }
}

async function* routerChecks(origin: URL, cid: CID, { retrieval }: Config): AsyncGenerator<Said> {
  for (const entry of retrieval.routers) {
    const router = openRouter(entry, { userAgent: retrieval.userAgent, clock: systemClock })
    const name = `router ${router.name}`
    const found = await ask(name, async () => {
      const { contentType, chunks } = await router.providers(cid, AbortSignal.timeout(callMs))
      for await (const { addresses } of readPeers(contentType, chunks))
        if (addresses.some((address) => address.split('/').includes(origin.hostname))) return true
      return false
    })
    const missing = found.said && /does not have it/.test(found.said.why)
    if (found.said && !missing) yield found.said
    else yield found.value ? ok(name, 'it names this gateway') : bad(name, 'it does not name this gateway')
    await router.close()
  }
}

const ok = (name: string, why: string): Said => ({ name, ok: true, why })
const bad = (name: string, why: string): Said => ({ name, ok: false, why })

async function ask<T>(name: string, work: () => Promise<T>): Promise<{ readonly value?: T; readonly said?: Said }> {
  try {
    return { value: await work() }
  } catch (error) {
    return { said: bad(name, wordsOf(error)) }
  }
}

async function providersAt(origin: URL, cid: CID): Promise<{ readonly peerId: string | undefined }> {
  const { status, bytes } = await fetchAt(new URL(`/routing/v1/providers/${cid}`, origin), {
    accept: 'application/json',
  })
  if (status !== 200) throw new Error(`${origin.origin} answers with ${status}: does it lead to this gateway?`)
  for await (const { id } of readPeers('application/json', [bytes] as unknown as AsyncIterable<Uint8Array>))
    return { peerId: id }
  return { peerId: undefined }
}

const blockAt = (origin: URL, cid: CID): Promise<Fetched> =>
  fetchAt(new URL(`/ipfs/${cid}?format=raw`, origin), { accept: rawType })

async function fetchAt(url: URL, headers: Readonly<Record<string, string>>): Promise<Fetched> {
  let protocol = 'HTTP/1.1'
  const connect = buildConnector({ allowH2: true, timeout: callMs })
  const dispatcher = new Agent({
    allowH2: true,
    connect: (options, done) =>
      connect(options, (...result) => {
        const [, socket] = result
        if (socket && 'alpnProtocol' in socket) protocol = socket.alpnProtocol || 'http/1.1'
        done(...result)
      }),
  })
  try {
    const signal = AbortSignal.timeout(callMs)
    const { statusCode: status, headers: got, body } = await request(url, { headers, dispatcher, signal })
    return {
      status,
      protocol,
      headerBytes: sizeOf(got),
      bytes: new Uint8Array(await body.arrayBuffer()),
      location: status >= 300 && status < 400 ? String(got['location']) : undefined,
    }
  } finally {
    await dispatcher.destroy()
  }
}

/** The size of headers as HTTP/2 counts it. */
const sizeOf = (headers: Readonly<Record<string, unknown>>): number =>
  Object.entries(headers).reduce((sum, [name, value]) => sum + name.length + String(value).length + perHeaderBytes, 0)
