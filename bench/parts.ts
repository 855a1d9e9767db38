// The parts of this gateway that one request runs: files, functions and calls by V8's precise coverage,
// and the promises, controllers and timers that it creates. `BENCH_PARTS=miss,upload` selects rows;
// BENCH_LIST=1 lists the files.
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { start } from './work/child.ts'
import type { Load } from './work/client.ts'
import { type Content, type Made, made } from './work/content.ts'
import { type Server, startOrigin } from './work/servers.ts'

const kib = 1024
const mib = 1024 * kib
const number = (name: string, otherwise: number): number => Number(process.env[name] ?? otherwise)

type PartsRow = {
  readonly id: string
  readonly what: string
  readonly content: Content
  /** Files requested before the count begins. */
  readonly warm: number
  readonly upstreams: number
  readonly cache?: object
  readonly more?: object
  /** Requests the same files again, which are cached by then. */
  readonly isHeld?: boolean
  /** Uploads instead of reads. */
  readonly isUpload?: boolean
  readonly connections: number
  /** The divisor of the counts. Default: the number of responses. */
  readonly per?: number
}

const warm = number('BENCH_WARM', 600)
const counted = number('BENCH_COUNTED', 1000)
const small = (bytes: number): Content => ({ count: warm + counted, bytes, seed: 1000 })
const noHot = { maxBytes: 0 }
const memory = { responses: noHot, tiers: [{ use: 'memory', maxBytes: '64MiB' }] }
const disk = { responses: noHot, tiers: [{ use: 'disk', maxBytes: '10GiB' }] }

const rows: readonly PartsRow[] = [
  {
    ...{ id: 'miss', what: 'a cold block of 4 KB, one upstream, memory alone' },
    ...{ content: small(4 * kib), warm, upstreams: 1, cache: memory, connections: 32 },
  },
  {
    ...{ id: 'miss3', what: 'the same of three upstreams' },
    ...{ content: small(4 * kib), warm, upstreams: 3, cache: memory, connections: 32 },
  },
  {
    ...{ id: 'miss+', what: 'the same with the disk tier and the response cache' },
    ...{ content: small(4 * kib), warm, upstreams: 1, connections: 32 },
  },
  {
    ...{ id: 'missbig', what: '64 MiB cold by CAR, a MiB of it' },
    ...{ content: { count: 2, bytes: 64 * mib, seed: 90 }, warm: 1, upstreams: 1, connections: 1, per: 64 },
  },
  {
    ...{ id: 'warm', what: 'a file of 20 KB from the disk tier' },
    ...{ content: { count: 500, bytes: 20 * kib, seed: 50 }, warm: 500, upstreams: 1, cache: disk },
    ...{ isHeld: true, connections: 16 },
  },
  {
    ...{ id: 'hot', what: 'a hot answer of 1 KB' },
    ...{ content: { count: 1, bytes: kib, seed: 1, json: true }, warm: 1, upstreams: 1, isHeld: true, connections: 16 },
  },
  {
    ...{ id: 'upload', what: 'an upload of 1 KB' },
    ...{ content: { count: 400, bytes: kib, seed: 7 }, warm: 200, upstreams: 0, isUpload: true, connections: 8 },
  },
]

type Counted = { readonly url: string; readonly startOffset: number; readonly count: number }

const bin = fileURLToPath(new URL('../bin/cidgate.mjs', import.meta.url))
const preload = fileURLToPath(new URL('work/parts-preload.mjs', import.meta.url))
const client = fileURLToPath(new URL('work/client.ts', import.meta.url))
const root = new URL('..', import.meta.url).href
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** The counts of the process, and the number of responses meanwhile. */
async function countedBy(
  row: PartsRow,
  mode: 'coverage' | 'objects',
  origin: Server | undefined,
  files: readonly Made[],
) {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-parts-'))
  const out = join(folder, 'counts.json')
  const upstreams = Array.from({ length: row.upstreams }, (_, index) => ({ name: `origin-${index}`, url: origin?.url }))
  const config = {
    ...{ listen: '127.0.0.1:0', admin: false, data: join(folder, 'data'), log: { level: 'error' } },
    retrieval: { probeEvery: 0, upstreams },
    ...(row.cache && { cache: row.cache }),
  }
  await writeFile(join(folder, 'config.yaml'), JSON.stringify(config))
  const args = ['--import', preload, bin, 'serve', '-c', join(folder, 'config.yaml')]
  const gateway = start(process.execPath, args, { COUNT_OUT: out, COUNT_MODE: mode })
  try {
    const url = /http:\/\/\S+/.exec(await gateway.line)?.[0] ?? ''
    const load = async (some: readonly Made[], times = 1): Promise<{ answers: number }> => {
      const requests: Load['requests'] = await Promise.all(some.map((one) => requestFor(row, one, folder)))
      const file = join(folder, 'load.json')
      const repeated = Array.from({ length: times }, () => requests).flat()
      await writeFile(file, JSON.stringify({ url, connections: row.connections, requests: repeated }))
      return JSON.parse(await start(process.execPath, [client, file]).line) as { answers: number }
    }
    const times = row.isHeld ? Math.ceil(counted / files.length) : 1
    await load(files.slice(0, row.warm))
    if (row.isHeld) {
      // Waits for writes that follow the responses.
      await pause(1500)
      await load(files, times)
    }
    process.kill(gateway.pid, 'SIGUSR2')
    await pause(300)
    const { answers } = await load(row.isHeld ? files : files.slice(row.warm), times)
    await pause(300)
    process.kill(gateway.pid, 'SIGUSR2')
    return { counts: await written(out), per: row.per ?? answers }
  } finally {
    await gateway.stop()
    await rm(folder, { recursive: true, force: true })
  }
}

async function requestFor(row: PartsRow, one: Made, folder: string): Promise<Load['requests'][number]> {
  if (!row.isUpload) return { path: `/ipfs/${one.cid}` }
  const boundary = 'cidgate-bench'
  const head = `--${boundary}\r\nContent-Disposition: form-data; name="data"; filename="f"\r\n\r\n`
  const bodyFile = join(folder, `body-${one.cid}`)
  await writeFile(bodyFile, Buffer.concat([Buffer.from(head), one.bytes, Buffer.from(`\r\n--${boundary}--\r\n`)]))
  const headers = `Content-Type: multipart/form-data; boundary=${boundary}\r\n`
  return { path: '/add', method: 'POST', headers, bodyFile }
}

/** Waits until the file is complete. */
async function written(path: string): Promise<unknown> {
  for (let tries = 0; tries < 200; tries++) {
    await pause(50)
    try {
      return JSON.parse(await readFile(path, 'utf8'))
    } catch {
      // Incomplete.
    }
  }
  throw new Error(`${path} was not written`)
}

function linesOf(
  row: PartsRow,
  counts: readonly Counted[],
  per: number,
): { files: number; text: string; list: string[] } {
  // Ignores functions that run for fewer than every second request; the first of a file is the
  // module itself.
  const ran = counts.filter(({ startOffset, count }) => startOffset > 0 && count / per >= 0.5)
  const byFile = new Map<string, number>()
  for (const { url, count } of ran) byFile.set(url, (byFile.get(url) ?? 0) + count / per)
  const calls = [...byFile.values()].reduce((sum, one) => sum + one, 0)
  const list = [...byFile].sort(([, one], [, other]) => other - one)
  return {
    files: byFile.size,
    text: `${row.id.padEnd(8)} ${String(byFile.size).padStart(4)} files ${String(ran.length).padStart(4)} functions ${calls.toFixed(0).padStart(6)} calls`,
    list: list.map(([url, many]) => `  ${many.toFixed(1).padStart(8)} ${url.replace(root, '')}`),
  }
}

const only = process.env['BENCH_PARTS']?.split(',')
for (const row of rows.filter(({ id }) => !only || only.includes(id))) {
  const files = await made(row.content)
  const origin = row.upstreams > 0 ? await startOrigin([row.content]) : undefined
  try {
    const way = await countedBy(row, 'coverage', origin, files)
    const { text, list } = linesOf(row, way.counts as Counted[], way.per)
    const waits = await countedBy(row, 'objects', origin, files)
    const each = (name: string): string => {
      const counts = waits.counts as Readonly<Record<string, number>>
      return ((counts[name] ?? 0) / waits.per).toFixed(1)
    }
    const objects = `${each('PROMISE').padStart(6)} promises ${each('AbortController')} controllers ${each('Timeout')} timers`
    process.stdout.write(`${text} ${objects}   ${row.what}\n`)
    if (process.env['BENCH_LIST']) process.stdout.write(`${list.join('\n')}\n`)
  } finally {
    await origin?.stop()
  }
}
