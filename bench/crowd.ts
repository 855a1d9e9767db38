// `node bench/crowd.ts`: response times in a crowd: 256 keep-alive connections that request a
// cached file without a pause, and 2,000 that connect at once for one request. In alternation with
// bare node:http and nginx.
import { connect, type Socket } from 'node:net'
import { made } from './work/content.ts'
import { isInstalled, type Server, startBare, startCidgate, startNginx, startOrigin } from './work/servers.ts'

const keptMs = Number(process.env['BENCH_SECONDS'] ?? 10) * 1000
const rounds = Number(process.env['BENCH_ROUNDS'] ?? 3)
const kept = 256
const atOnce = 2000

type Target = { readonly host: string; readonly port: number; readonly request: string; readonly size: number }

const percentile = (sorted: readonly number[], share: number): number =>
  sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN

/** Response times in milliseconds of connections that repeat a request until the time is over. */
async function keptOpen({ host, port, request, size }: Target): Promise<number[]> {
  const waits: number[] = []
  const until = performance.now() + keptMs
  const one = () =>
    new Promise<void>((resolve, reject) => {
      let [asked, bytes] = [0, 0]
      const socket: Socket = connect({ host, port, noDelay: true }, ask)
      function ask(): void {
        asked = performance.now()
        bytes = 0
        socket.write(request)
      }
      socket.on('data', (piece) => {
        bytes += piece.byteLength
        if (bytes < size) return
        const now = performance.now()
        waits.push(now - asked)
        if (now < until) ask()
        else socket.destroy()
      })
      socket.on('error', reject)
      socket.on('close', () => (performance.now() < until ? reject(new Error('it was closed')) : resolve()))
    })
  await Promise.all(Array.from({ length: kept }, one))
  return waits.sort((a, b) => a - b)
}

/** Milliseconds from the common start to each response; a server may close connections without one. */
async function comeAtOnce({ host, port, request, size }: Target): Promise<number[]> {
  const began = performance.now()
  const one = () =>
    new Promise<number[]>((resolve) => {
      let bytes = 0
      const socket = connect({ host, port, noDelay: true }, () => socket.write(request))
      socket.on('data', (piece) => {
        bytes += piece.byteLength
        if (bytes < size) return
        resolve([performance.now() - began])
        socket.destroy()
      })
      socket.on('error', () => {})
      socket.on('close', () => resolve([]))
    })
  const waits = await Promise.all(Array.from({ length: atOnce }, one))
  return waits.flat().sort((a, b) => a - b)
}

const content = { count: 1, bytes: 1024, seed: 1, json: true }
const files = await made(content)
const path = `/ipfs/${files[0]?.cid}`
const origin = await startOrigin([content])
const cidgate = await startCidgate({
  retrieval: { probeEvery: 0, upstreams: [{ name: 'origin', url: origin.url }] },
  limits: { maxConnectionsPerClient: 8192 },
})
await (await fetch(cidgate.url + path)).arrayBuffer()
const servers: [string, Server][] = [
  ['cidgate', cidgate],
  ['bare', await startBare(cidgate.url + path)],
]
if (isInstalled('nginx')) servers.push(['nginx', await startNginx(files)])

async function targetOf({ url }: Server): Promise<Target> {
  const { hostname: host, port } = new URL(url)
  const request = `GET ${path} HTTP/1.1\r\nHost: ${host}:${port}\r\n\r\n`
  const [size] = await new Promise<[number]>((resolve, reject) => {
    let bytes = 0
    const socket = connect({ host, port: Number(port) }, () => socket.write(request))
    socket.on('data', (piece) => (bytes += piece.byteLength))
    socket.on('error', reject)
    setTimeout(() => {
      socket.destroy()
      resolve([bytes])
    }, 300)
  })
  return { host, port: Number(port), request, size }
}

const lineOf = (name: string, what: string, waits: readonly number[]): string =>
  `${name.padEnd(8)} ${what}: p50 ${percentile(waits, 0.5).toFixed(1)} ms, p99 ${percentile(waits, 0.99).toFixed(1)} ms, longest ${percentile(waits, 1).toFixed(1)} ms, ${waits.length} answers`

for (let round = 0; round < rounds; round++)
  for (const [name, server] of servers) {
    const target = await targetOf(server)
    process.stdout.write(`${lineOf(name, `${kept} kept connections`, await keptOpen(target))}\n`)
    process.stdout.write(`${lineOf(name, `${atOnce} that connect at once`, await comeAtOnce(target))}\n`)
  }
for (const [, server] of servers) await server.stop()
await origin.stop()
