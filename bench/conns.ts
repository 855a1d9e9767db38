// `node bench/conns.ts`: cached responses while 10,000 clients are connected and silent, and 1,000
// send or read as slowly as they may, in alternation with the same gateway without them. A process
// of its own holds the connections.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { Agent, get } from 'node:http'
import { connect, type Socket } from 'node:net'
import { loadavg } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { made } from './work/content.ts'
import { type Server, startCidgate, startOrigin } from './work/servers.ts'

const idle = Number(process.env['BENCH_IDLE'] ?? 10_000)
const slow = Number(process.env['BENCH_SLOW'] ?? 1000)
const asking = 16
/** Not the address of the slow clients, which share a limit. */
const asker = '127.0.0.2'
const roundMs = 4000
const rounds = Number(process.env['BENCH_ROUNDS'] ?? 3)
const aim = 2
const maxToCalm = 40
const mib = 2 ** 20
const large = { count: 1, bytes: 8 * mib, seed: 20 }
const small = { count: 1, bytes: 1024, seed: 1, json: true }

/** Opens the connections in batches, because a busy machine refuses some of a crowd. */
async function hold(url: URL, hot: string, large: string): Promise<void> {
  const open = new Set<Socket>()
  const dial = (onOpen: (socket: Socket) => void, onClose = () => {}) =>
    new Promise<void>((resolve) => {
      const socket = connect(Number(url.port), url.hostname, () => {
        onOpen(socket)
        resolve()
      })
      socket.on('error', () => resolve())
      socket.once('close', () => open.delete(socket) && onClose())
      open.add(socket)
    })
  /** Sends one request, and keeps the connection. */
  const quiet = () =>
    dial((socket) => {
      socket.write(`GET ${hot} HTTP/1.1\r\nHost: ${url.host}\r\n\r\n`)
      socket.resume()
    })
  /** Sends an endless head; reconnects when it is cut off. */
  const drips = (): Promise<void> =>
    dial(
      (socket) => {
        socket.write(`GET ${hot} HTTP/1.1\r\nHost: ${url.host}\r\nX-Slow: `)
        const timer = setInterval(() => socket.write('x'), 1000)
        socket.once('close', () => clearInterval(timer)).resume()
      },
      () => void drips(),
    )
  const sips = () =>
    dial((socket) => {
      socket.write(`GET ${large} HTTP/1.1\r\nHost: ${url.host}\r\n\r\n`)
      const timer = setInterval(() => socket.resume() && setImmediate(() => socket.pause()), 1000)
      socket.once('close', () => clearInterval(timer)).pause()
    })
  const all = [
    ...Array.from({ length: idle }, () => quiet),
    ...Array.from({ length: slow }, (_, index) => (index % 2 === 0 ? drips : sips)),
  ]
  for (let at = 0; at < all.length; at += 100) await Promise.all(all.slice(at, at + 100).map((one) => one()))
  process.on('message', () => process.send?.(open.size))
  process.send?.('held')
}

/** Waits until the server is idle: accepting the connections is not measured. */
async function calm(server: Pick<Server, 'cpuSeconds'>): Promise<void> {
  for (let seconds = 0, before = server.cpuSeconds(); seconds < maxToCalm; seconds++) {
    await sleep(1000)
    const now = server.cpuSeconds()
    if (now - before < 0.3) return
    before = now
  }
}

/** Response times of a few sequential clients. */
async function times(url: string): Promise<number[]> {
  const agent = new Agent({ keepAlive: true, maxSockets: asking })
  const all: number[] = []
  const until = performance.now() + roundMs
  const ask = () =>
    new Promise<void>((resolve, reject) => {
      get(url, { agent, localAddress: asker }, (answer) => {
        if (answer.statusCode !== 200) reject(new Error(`answered ${answer.statusCode}`))
        answer.resume().once('end', resolve)
      }).once('error', reject)
    })
  const client = async () => {
    while (performance.now() < until) {
      const began = performance.now()
      await ask()
      all.push(performance.now() - began)
    }
  }
  await Promise.all(Array.from({ length: asking }, client))
  agent.destroy()
  return all.sort((one, other) => one - other)
}

const at = (all: readonly number[], share: number): number => all[Math.ceil(all.length * share) - 1] ?? 0

async function main(): Promise<void> {
  const origin = await startOrigin([large, small])
  const [file] = await made(large)
  const [hot] = await made(small)
  const limits = {
    maxConnections: idle + slow + 500,
    maxConnectionsPerClient: idle + slow + 500,
    keepAliveTimeout: '10m',
  }
  const gateway = await startCidgate({
    limits,
    retrieval: { probeEvery: 0, upstreams: [{ name: 'origin', url: origin.url }] },
  })
  const path = `${gateway.url}/ipfs/${hot?.cid}`
  for (const one of [file, hot]) await (await fetch(`${gateway.url}/ipfs/${one?.cid}`)).arrayBuffer()
  await times(path)
  const ratios: number[] = []
  for (let round = 0; round < rounds; round++) {
    const baseline = await times(path)
    const before = gateway.resident()
    const holder = fork(fileURLToPath(import.meta.url), [gateway.url, `/ipfs/${hot?.cid}`, `/ipfs/${file?.cid}`])
    await once(holder, 'message')
    await calm(gateway)
    const loaded = await times(path)
    holder.send('held')
    const [held] = (await once(holder, 'message')) as [number]
    const resident = gateway.resident()
    holder.kill()
    await once(holder, 'exit')
    await calm(gateway)
    ratios.push(at(loaded, 0.99) / at(baseline, 0.99))
    process.stdout.write(
      `hot p50 ${at(baseline, 0.5).toFixed(2)} ms, p99 ${at(baseline, 0.99).toFixed(2)} ms alone; ${at(loaded, 0.5).toFixed(2)} and ${at(loaded, 0.99).toFixed(2)} ms beside ${held} connections; ${((resident - before) / mib).toFixed(0)} MiB for them; load ${loadavg()[0]?.toFixed(1)}\n`,
    )
  }
  ratios.sort((one, other) => one - other)
  const ratio = ratios[rounds >> 1] ?? 0
  process.stdout.write(`${ratio <= aim ? 'holds ' : 'MISSED'} p99 ${ratio.toFixed(2)} x of alone (aim ${aim})\n`)
  await gateway.stop()
  await origin.stop()
}

const [url, hot = '', file = ''] = process.argv.slice(2)
if (url !== undefined) await hold(new URL(url), hot, file)
else await main()
