// The rows: each names its work, its peers and the share of a peer's work that the gateway should reach. A row starts its own
// servers and defines the load of one round; `measure.ts` runs them in turns.
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Load } from './client.ts'
import { type Content, type Made, made } from './content.ts'
import {
  isInstalled,
  isVerifiedFetchInstalled,
  type Server,
  startBare,
  startCidgate,
  startHasher,
  startKuboWith,
  startKuboWithBlocks,
  startNginx,
  startNginxCache,
  startOrigin,
  startPacedUpstreams,
  startPassThrough,
  startVarnish,
  startVerifiedFetch,
  tempFolder,
} from './servers.ts'

export type Contender = {
  readonly name: string
  readonly server: Server
  /** The load of one round. Cold content differs from round to round. */
  readonly load: (round: number) => Omit<Load, 'url'> & { readonly url?: string }
  /** Runs before each round, unmeasured. */
  readonly before?: (round: number) => Promise<void>
}

export type Row = {
  readonly id: string
  readonly work: string
  readonly unit: 'requests' | 'MiB'
  /** Limits slow rounds. */
  readonly maxRounds?: number
  /** Compares times: each server is idle most of the time. */
  readonly isByClock?: boolean
  /** Minimum ratios by peer; maximum ones in a row by the clock. */
  readonly aims: Readonly<Record<string, number>>
  readonly setUp: (
    scale: Scale,
  ) => Promise<{ readonly contenders: readonly Contender[]; readonly others: readonly Server[] }>
}

export type Scale = { readonly seconds: number; readonly rounds: number; readonly isQuick: boolean }

const kib = 1024
const mib = 1024 * 1024
const pathOf = ({ cid }: Made): string => `/ipfs/${cid}`
const upstream = (origin: Server, count = 1): object => ({
  probeEvery: 0,
  upstreams: Array.from({ length: count }, (_, index) => ({ name: `origin-${index}`, url: origin.url })),
})
const memory = { use: 'memory', maxBytes: '64MiB' }
const disk = { use: 'disk', maxBytes: '10GiB' }
const noHot = { maxBytes: 0 }

async function isKept(server: Server, one: Made): Promise<boolean> {
  const headers = { 'Cache-Control': 'only-if-cached' }
  const answer = await fetch(server.url + pathOf(one), { headers })
  const body = await answer.arrayBuffer().catch(() => undefined)
  return answer.status === 200 && body?.byteLength === one.bytes.byteLength
}

/** Throws if the response differs. */
async function demandSame(server: Server, one: Made): Promise<void> {
  const answer = await fetch(server.url + pathOf(one))
  const bytes = new Uint8Array(await answer.arrayBuffer())
  if (answer.status !== 200 || Buffer.compare(bytes, one.bytes) !== 0)
    throw new Error(`${pathOf(one)}: ${answer.status}, ${bytes.byteLength} bytes that are not the right ones`)
}

/** Requests everything once, so that it is cached. */
async function fill(server: Server, files: readonly Made[]): Promise<void> {
  for (let at = 0; at < files.length; at += 16)
    await Promise.all(files.slice(at, at + 16).map((one) => demandSame(server, one)))
  // Writes that follow the responses take a moment.
  const giveUpAt = performance.now() + 30_000
  for (const one of files)
    while (!(await isKept(server, one))) {
      if (performance.now() > giveUpAt) throw new Error(`${pathOf(one)} is in no tier`)
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
}

type Reading = { readonly content: Content; readonly config: (origin: Server) => object; readonly connections: number }

/** Files that every contender has before the load begins. */
async function reading(
  { content, config, connections }: Reading,
  scale: Scale,
  requestsOf: (files: readonly Made[]) => Load['requests'],
): Promise<{ contenders: Contender[]; others: Server[]; files: Made[]; cidgate: Server; load: Contender['load'] }> {
  const files = await made(content)
  const origin = await startOrigin([content])
  const cidgate = await startCidgate(config(origin))
  await fill(cidgate, files)
  const requests = requestsOf(files)
  const load = () => ({ connections, seconds: scale.seconds, requests })
  const contenders: Contender[] = [{ name: 'cidgate', server: cidgate, load }]
  if (isInstalled('nginx')) contenders.push({ name: 'nginx', server: await startNginx(files), load })
  if (isInstalled('ipfs')) contenders.push({ name: 'kubo', server: await startKuboWith(files), load })
  return { contenders, others: [origin], files, cidgate, load }
}

const hotContent: Content = { count: 1, bytes: kib, seed: 1, json: true }

function hotRow(id: string, work: string, aims: Row['aims'], headersOf: (etag: string) => string): Row {
  return {
    id,
    work,
    unit: 'requests',
    aims,
    async setUp(scale) {
      const [file] = await made(hotContent)
      const etag = `"${file?.cid}"`
      const asked = {
        content: hotContent,
        config: (origin: Server) => ({ retrieval: upstream(origin) }),
        connections: 32,
      }
      const requestsOf = (files: readonly Made[]) =>
        files.map((one) => ({ path: pathOf(one), headers: headersOf(etag) }))
      const { contenders, others, files, cidgate, load } = await reading(asked, scale, requestsOf)
      const [first] = files
      if (!first) throw new Error('there is no file')
      const bare = await startBare(cidgate.url + pathOf(first), etag)
      contenders.push({ name: 'bare', server: bare, load })
      if (isInstalled('nginx'))
        contenders.push({ name: 'nginx cache', server: await startNginxCache(cidgate, files.length), load })
      if (aims['varnish'] && isInstalled('varnishd'))
        contenders.push({ name: 'varnish', server: await startVarnish(cidgate), load })
      return { contenders, others }
    },
  }
}

function missRow(id: string, work: string, aim: number, cache: object, upstreams = 1): Row {
  return {
    id,
    work,
    unit: 'requests',
    aims: { 'pass-through': aim },
    async setUp({ rounds, isQuick }) {
      const perRound = isQuick ? 2000 : 6000
      const content = { count: perRound * (rounds + 1), bytes: 4 * kib, seed: 1000 }
      const files = await made(content)
      const origin = await startOrigin([content])
      const load = (round: number) => ({
        connections: 32,
        requests: files.slice(round * perRound, (round + 1) * perRound).map((one) => ({ path: pathOf(one) })),
      })
      const cidgate = await startCidgate({ retrieval: upstream(origin, upstreams), cache })
      const through = await startPassThrough(origin)
      return {
        contenders: [
          { name: 'cidgate', server: cidgate, load },
          { name: 'pass-through', server: through, load },
        ],
        others: [origin],
      }
    },
  }
}

function addRow(id: string, work: string, aim: number, bytes: number, perRound: number, connections: number): Row {
  return {
    id,
    work,
    unit: bytes > mib ? 'MiB' : 'requests',
    aims: { kubo: aim },
    async setUp({ rounds }) {
      const folder = await tempFolder()
      const boundary = 'cidgate-bench'
      const requestsOf = async (path: string, name: string) => {
        const all: Load['requests'][number][][] = []
        const files = await made({ count: perRound * (rounds + 1), bytes, seed: 7 })
        for (const [index, file] of files.entries()) {
          const bodyFile = join(folder, `${id}-${name}-${index}`)
          const head = `--${boundary}\r\nContent-Disposition: form-data; name="${name}"; filename="f"\r\n\r\n`
          await writeFile(
            bodyFile,
            Buffer.concat([Buffer.from(head), file.bytes, Buffer.from(`\r\n--${boundary}--\r\n`)]),
          )
          const headers = `Content-Type: multipart/form-data; boundary=${boundary}\r\n`
          const at = Math.floor(index / perRound)
          all[at] = [...(all[at] ?? []), { path, headers, method: 'POST', bodyFile }]
        }
        return (round: number) => ({ connections, requests: all[round] ?? [] })
      }
      const cidgate = await startCidgate({ retrieval: { probeEvery: 0, upstreams: [] } })
      const contenders: Contender[] = [{ name: 'cidgate', server: cidgate, load: await requestsOf('/add', 'data') }]
      if (isInstalled('ipfs')) {
        const kubo = await startKuboWith([])
        const load = await requestsOf('/api/v0/add?quieter=true&progress=false', 'file')
        contenders.push({ name: 'kubo', server: kubo, load: (round) => ({ url: kubo.rpc, ...load(round) }) })
      }
      return { contenders, others: [] }
    },
  }
}

/** Weaker than a comparison of bytes, since every server has its own page. */
async function listsAll({ url }: Server, one: Made, names: number): Promise<void> {
  const answer = await fetch(`${url}${pathOf(one)}/`, { headers: { Accept: 'text/html' } })
  const page = await answer.text()
  const listed = new Set(page.match(/document-\d{6}\.json/g))
  if (answer.status !== 200 || listed.size !== names)
    throw new Error(`${url}: ${answer.status}, ${listed.size} of ${names} names`)
}

/** A new directory for each round; the last one is for the check of the responses. */
function listingRow(id: string, work: string, cache: object, isFilled = false): Row {
  return {
    id,
    work,
    unit: 'requests',
    maxRounds: 3,
    aims: { kubo: 1 },
    async setUp({ rounds, isQuick }) {
      const names = isQuick ? 10_000 : 100_000
      const content = { count: rounds + 2, bytes: 0, seed: 40, names }
      const directories = await made(content)
      const origin = await startOrigin([content])
      const load = (round: number) => {
        const path = `${pathOf(directories[round] as Made)}/`
        return {
          connections: 8,
          requests: Array.from({ length: 8 }, () => ({ path, headers: 'Accept: text/html\r\n' })),
        }
      }
      const cidgate = await startCidgate({ retrieval: upstream(origin), cache })
      if (isFilled) for (const one of directories) await listsAll(cidgate, one, names)
      const contenders: Contender[] = [{ name: 'cidgate', server: cidgate, load }]
      if (isInstalled('ipfs')) contenders.push({ name: 'kubo', server: await startKuboWithBlocks(directories), load })
      for (const { server } of contenders) await listsAll(server, directories.at(-1) as Made, names)
      return { contenders, others: [origin] }
    },
  }
}

/**
 * @helia/verified-fetch verifies too.
 * @helia/verified-fetch proves what it reads, too.
 */
function verifiedFetchRow(id: string, work: string, aim: number, isMiss: boolean): Row {
  return {
    id,
    work,
    unit: 'requests',
    aims: { 'verified-fetch': aim },
    async setUp({ rounds, isQuick, seconds }) {
      const perRound = isMiss ? (isQuick ? 500 : 2000) : 1
      const content = { count: isMiss ? perRound * (rounds + 1) + 16 : 1, bytes: 4 * kib, seed: 5000 }
      const files = await made(content)
      const origin = await startOrigin([content])
      const load = (round: number) => {
        const some = isMiss ? files.slice(round * perRound, (round + 1) * perRound) : files
        const requests = some.map((one) => ({ path: pathOf(one) }))
        return { connections: 32, requests, ...(!isMiss && { seconds }) }
      }
      const cache = isMiss ? { responses: noHot, tiers: [memory] } : {}
      const contenders: Contender[] = [
        { name: 'cidgate', server: await startCidgate({ retrieval: upstream(origin), cache }), load },
      ]
      if (isVerifiedFetchInstalled())
        contenders.push({ name: 'verified-fetch', server: await startVerifiedFetch(origin), load })
      for (const { server } of contenders) for (const one of files.slice(-16)) await demandSame(server, one)
      return { contenders, others: [origin] }
    },
  }
}

const bigContent = (isQuick: boolean): Content => ({ count: 1, bytes: (isQuick ? 64 : 256) * mib, seed: 3 })
const pacedMib = 32
const onDisk = (origin: Server): object => ({ retrieval: upstream(origin), cache: { responses: noHot, tiers: [disk] } })

export const rows: readonly Row[] = [
  hotRow('hot', '1 KB of JSON, 32 connections', { 'nginx cache': 1.2, bare: 1.5, varnish: 1 }, () => ''),
  hotRow('304', 'If-None-Match, 32 connections', { 'nginx cache': 1 }, (etag) => `If-None-Match: ${etag}\r\n`),
  {
    id: 'warm',
    work: 'files of 20 KB from the disk tier, response cache off',
    unit: 'requests',
    aims: { kubo: 3 },
    setUp: (scale) =>
      reading(
        { content: { count: scale.isQuick ? 1000 : 5000, bytes: 20 * kib, seed: 50 }, config: onDisk, connections: 16 },
        scale,
        (files) => files.map((one) => ({ path: pathOf(one) })),
      ),
  },
  {
    id: 'big',
    work: 'one large file from the disk tier',
    unit: 'MiB',
    aims: { kubo: 0.7, hasher: 0.8 },
    async setUp(scale) {
      const asked = { content: bigContent(scale.isQuick), config: onDisk, connections: 2 }
      const requestsOf = (files: readonly Made[]) => files.map((one) => ({ path: pathOf(one) }))
      const { contenders, others, files, load } = await reading(asked, scale, requestsOf)
      contenders.push({ name: 'hasher', server: await startHasher(files), load })
      return { contenders, others }
    },
  },
  {
    id: 'range',
    work: '64 KB at random places of a large file of 1 MiB blocks',
    unit: 'requests',
    aims: { kubo: 3 },
    setUp: (scale) =>
      reading({ content: bigContent(scale.isQuick), config: onDisk, connections: 8 }, scale, (files) =>
        files.flatMap((one) =>
          Array.from({ length: 997 }, (_, index) => {
            const from = (index * 7_919_771) % (one.bytes.byteLength - 64 * kib)
            return { path: pathOf(one), headers: `Range: bytes=${from}-${from + 64 * kib - 1}\r\n` }
          }),
        ),
      ),
  },
  missRow('miss', 'distinct files of 4 KB from one upstream, memory tier alone', 0.7, {
    responses: noHot,
    tiers: [memory],
  }),
  missRow('miss3', 'the same of three upstreams', 0.65, { responses: noHot, tiers: [memory] }, 3),
  missRow('miss+', 'the same with the disk tier and the response cache', 0.55, {}),
  {
    id: 'missbig',
    work: '64 MiB cold by CAR, kept on disk',
    unit: 'MiB',
    aims: { 'pass-through': 0.45 },
    async setUp({ rounds }) {
      const content = { count: rounds + 1, bytes: 64 * mib, seed: 90 }
      const files = await made(content)
      const origin = await startOrigin([content])
      const load = (round: number) => ({
        connections: 1,
        requests: files.slice(round, round + 1).map((one) => ({ path: pathOf(one) })),
      })
      const cidgate = await startCidgate({ retrieval: upstream(origin) })
      return {
        contenders: [
          { name: 'cidgate', server: cidgate, load },
          { name: 'pass-through', server: await startPassThrough(origin), load },
        ],
        others: [origin],
      }
    },
  },
  {
    id: 'two sources',
    work: `a cold file of ${pacedMib} MiB from two upstreams of 8 MB/s each, in time of one of them`,
    unit: 'MiB',
    maxRounds: 3,
    isByClock: true,
    aims: { 'one source': 0.6 },
    async setUp({ rounds }) {
      const upstreams = await startPacedUpstreams(
        2,
        Array.from({ length: rounds + 1 }, () => pacedMib),
        8e6,
      )
      const load = (round: number) => ({
        connections: 1,
        requests: upstreams.files.slice(round, round + 1).map(({ cid }) => ({ path: `/ipfs/${cid}` })),
      })
      const gatewayOver = (urls: readonly string[]) =>
        startCidgate({
          retrieval: { probeEvery: 0, upstreams: urls.map((url, index) => ({ name: `paced-${index}`, url })) },
          cache: { responses: noHot, tiers: [memory] },
        })
      return {
        contenders: [
          { name: 'cidgate', server: await gatewayOver(upstreams.urls), load },
          { name: 'one source', server: await gatewayOver(upstreams.urls.slice(0, 1)), load },
        ],
        others: [upstreams],
      }
    },
  },
  listingRow('listing', 'a directory of 100,000 names (10,000 with --quick), cold from one upstream, eight at once', {
    responses: noHot,
  }),
  listingRow('listing+', 'the same from the disk tier', { responses: noHot, tiers: [disk] }, true),
  verifiedFetchRow('verified-fetch', '4 KB over and over, 32 connections', 15, false),
  verifiedFetchRow('verified-fetch-miss', 'distinct files of 4 KB from one upstream, memory tier alone', 3, true),
  addRow('add', '1 KB, 16 at once, fsynced', 2, kib, 400, 16),
  addRow('addbig', '64 MiB, fsynced', 1.2, 64 * mib, 1, 1),
]
