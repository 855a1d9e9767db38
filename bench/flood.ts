// `node bench/flood.ts`: overload. The gateway has one core (`BENCH_CORES=0,1`: two); on the other,
// `wrk` keeps hundreds of connections busy with cold files. A small process measures what other
// clients see: it sends requests for cached files, cold files and new connections on a schedule,
// independent of responses.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { connect } from 'node:net'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { made } from './work/content.ts'
import { pinned, startCidgate, startOrigin } from './work/servers.ts'

const seconds = Number(process.env['BENCH_SECONDS'] ?? 8)
/** The cores of the gateway; everything else is on core 1. */
const cores = process.env['BENCH_CORES'] ?? '0'
const cold = { count: 60_000, bytes: 4096, seed: 1000 }
const hot = { count: 1, bytes: 1024, seed: 1, json: true }

type Sort = 'hot' | 'cold' | 'new'
type Asked = { readonly sort: Sort; readonly status: string; readonly ms: number }
type Outcome = { readonly asked: readonly Asked[]; readonly unanswered: number }
type Plan = { readonly url: string; readonly hot: string; readonly cold: readonly string[]; readonly seconds: number }

/** Requests per second of each kind. */
const rates: Readonly<Record<Sort, number>> = { hot: 50, cold: 50, new: 10 }
/** The prober's connections for cached files, and as many for cold ones. */
const lines = 100
/** The time to wait for responses after the last request. */
const timeoutMs = 5000

type Asking = { readonly sort: Sort; readonly path: string; readonly due: number }
type Answered = Pick<Asking, 'sort' | 'due'> & { readonly status: string; readonly isOpen: boolean }

/** A connection with one request in progress; `first` is sent as soon as it is open. */
function openLine(url: URL, onAnswer: (line: Line, report: Answered) => void, first?: Asking): Line {
  let now: Asking | undefined
  let text = ''
  const socket = connect(Number(url.port), url.hostname, () => first && line.ask(first))
  const line: Line = {
    ask(asking) {
      now = asking
      socket.write(`GET ${asking.path} HTTP/1.1\r\nHost: ${url.host}\r\n\r\n`)
    },
    close: () => socket.destroy(),
  }
  const report = (status: string, isOpen: boolean) => {
    const asking = now ?? first
    now = undefined
    if (asking) onAnswer(line, { ...asking, status, isOpen })
  }
  socket.setNoDelay(true)
  socket.on('data', (piece) => {
    text += piece.toString('latin1')
    const end = text.indexOf('\r\n\r\n')
    const length = Number(/\r\ncontent-length: (\d+)/i.exec(text)?.[1])
    if (end < 0 || text.length < end + 4 + length) return
    const [status, isOpen] = [text.slice(9, 12), !/\r\nconnection: close/i.test(text.slice(0, end))]
    text = ''
    report(status, isOpen)
  })
  socket.on('error', ({ code = '' }: NodeJS.ErrnoException) => report(code, false))
  return line
}

type Line = { ask(asking: Asking): void; close(): void }

/** Sends requests on a schedule, and times each from when it was due. */
async function probe({ url, hot, cold, seconds }: Plan): Promise<Outcome> {
  const to = new URL(url)
  const asked: Asked[] = []
  const free: Record<Sort, Line[]> = { hot: [], cold: [], new: [] }
  const waiting: Record<Sort, Asking[]> = { hot: [], cold: [], new: [] }
  const onAnswer = (line: Line, { sort, status, due, isOpen }: Answered) => {
    asked.push({ sort, status, ms: performance.now() - due })
    if (sort === 'new' || !isOpen) return line.close()
    const next = waiting[sort].shift()
    if (next) line.ask(next)
    else free[sort].push(line)
  }
  function ask(asking: Asking): void {
    const { sort } = asking
    const line = free[sort].shift()
    if (sort === 'new') openLine(to, onAnswer, asking)
    else if (line) line.ask(asking)
    else waiting[sort].push(asking)
  }
  for (const sort of ['hot', 'cold'] as const)
    for (let count = 0; count < lines; count++) free[sort].push(openLine(to, onAnswer))
  // Measures established connections; new ones are a kind of their own.
  await sleep(500)
  process.send?.('connected')
  await once(process, 'message')
  const began = performance.now()
  let due = 0
  const askAll = async (sort: Sort) => {
    for (let count = 0; count < rates[sort] * seconds; count++) {
      const at = began + (count * 1000) / rates[sort]
      await sleep(Math.max(0, at - performance.now()))
      due++
      ask({ sort, path: sort === 'cold' ? (cold[count % cold.length] as string) : hot, due: at })
    }
  }
  await Promise.all((Object.keys(rates) as Sort[]).map(askAll))
  await sleep(timeoutMs)
  return { asked, unanswered: due - asked.length }
}

const at = (sorted: readonly number[], part: number): string =>
  `${(sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN).toFixed(1)}`

function print({ asked, unanswered }: Outcome): void {
  const groups = Map.groupBy(asked, ({ sort, status }) => `${sort} ${status}`)
  for (const [name, group] of [...groups].sort()) {
    const sorted = group.map(({ ms }) => ms).sort((one, other) => one - other)
    console.log(
      `  ${name}: ${sorted.length}, p50 ${at(sorted, 0.5)} p90 ${at(sorted, 0.9)} p99 ${at(sorted, 0.99)} most ${at(sorted, 1)} ms`,
    )
  }
  if (unanswered > 0) console.log(`  without an answer: ${unanswered}`)
}

async function wrk(url: string, connections: number, script: string): Promise<string> {
  const args = ['-t1', `-c${connections}`, `-d${seconds + 2}s`, '--timeout', '20s', '--latency', '-s', script, url]
  const child = spawn(...pinned(1, 'wrk', args), { stdio: ['ignore', 'pipe', 'inherit'] })
  let text = ''
  child.stdout.on('data', (piece) => {
    text += piece
  })
  await once(child, 'exit')
  return text
}

async function run(limits: object, connections: number, paths: readonly string[], hotPath: string): Promise<void> {
  const origin = await startOrigin([cold, hot])
  const config = {
    retrieval: { upstreams: [{ name: 'origin', url: origin.url }] },
    cache: { tiers: [{ use: 'memory', maxBytes: '512MiB' }] },
    limits,
  }
  const gateway = await startCidgate(config, cores)
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-flood-'))
  try {
    for (let count = 0; count < 3; count++) await (await fetch(gateway.url + hotPath)).arrayBuffer()
    const script = join(folder, 'flood.lua')
    const own = paths.slice(-5000)
    await writeFile(join(folder, 'paths'), paths.slice(0, -own.length).join('\n'))
    await writeFile(
      script,
      `local requests, at = {}, 0
function init() for path in io.lines("${join(folder, 'paths')}") do requests[#requests + 1] = wrk.format("GET", path) end end
function request() at = at % #requests + 1; return requests[at] end`,
    )
    const child = spawn(...pinned(1, process.execPath, [fileURLToPath(import.meta.url), 'probe']), {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    })
    child.send({ url: gateway.url, hot: hotPath, cold: own, seconds } satisfies Plan)
    await once(child, 'message')
    const flood = connections > 0 ? wrk(gateway.url, connections, script) : sleep((seconds + 2) * 1000, '')
    await sleep(1000)
    child.send('go')
    const [outcome] = (await once(child, 'message')) as [Outcome]
    const said = await flood
    const load = loadavg()[0]?.toFixed(1)
    console.log(`${JSON.stringify(limits)}, ${connections} connections, load ${load}`)
    console.log(
      `  wrk: ${said.match(/(?<=%\s+)\S+(?=\n)/g)?.join(' ')}, ${/\d+ requests in.*/.exec(said)?.[0]} ${/Non-2xx.*/.exec(said)?.[0] ?? ''}`,
    )
    print(outcome)
  } finally {
    await gateway.stop()
    await origin.stop()
    await rm(folder, { recursive: true, force: true })
  }
}

if (process.argv[2] === 'probe') {
  const [plan] = (await once(process, 'message')) as [Plan]
  const outcome = await probe(plan)
  process.send?.(outcome, () => process.exit(0))
} else {
  const [only] = await made(hot)
  const paths = (await made(cold)).map(({ cid }) => `/ipfs/${cid}`)
  const hotPath = `/ipfs/${only?.cid}`
  const counts = (process.env['BENCH_CONNECTIONS'] ?? '0,500,2000').split(',').map(Number)
  const limits = (process.env['BENCH_LIMITS'] ?? '{"maxConcurrentRequests":200}')
    .split(';')
    .map((one) => JSON.parse(one) as object)
  for (const limit of limits) for (const connections of counts) await run(limit, connections, paths, hotPath)
}
