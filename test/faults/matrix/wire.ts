// Rows of the fault matrix: what comes over a socket that no usual client sends, with the answer that is promised, and what a client
// of a hot file feels of it.
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { addFile, type BlockMap, noise } from '../../support/fixtures.ts'
import { fetchAll, startGateway } from '../../support/gateway.ts'
import { startUpstream } from '../../support/upstream.ts'
import { type Cell, inMs, type Row } from './rows.ts'

export type WireFault = {
  readonly name: string
  /** What each of them sends; `path` is that of a hot file, `large` that of 8 MiB. */
  readonly sends: (path: string, large: string) => string
  /** Statuses that are right; `cut`: by the gateway, without an answer; `left`: by the client, at the end. */
  readonly right: readonly (number | 'cut' | 'left')[]
  readonly sockets?: number
  readonly how?: 'leaves' | 'half-closes' | 'idles' | 'drips' | 'reads slowly'
}

const head = 'Host: gate.example\r\n'
const close = `${head}Connection: close\r\n`
const inner = 'GET /ipfs/x HTTP/1.1\r\nHost: a\r\n\r\n'

export const wireFaults: readonly WireFault[] = [
  {
    name: '100,000 headers',
    sends: (path) => `GET ${path} HTTP/1.1\r\n${head}${'a: b\r\n'.repeat(100_000)}\r\n`,
    right: [431, 'cut'],
  },
  {
    name: 'a URL of 1 MB',
    sends: () => `GET /${'x'.repeat(1_000_000)} HTTP/1.1\r\n${close}\r\n`,
    right: [414, 431, 'cut'],
  },
  {
    name: 'Content-Length and Transfer-Encoding',
    sends: () =>
      `POST /add HTTP/1.1\r\n${head}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${inner}`,
    right: [400],
  },
  {
    name: 'two Content-Length',
    sends: () => `POST /add HTTP/1.1\r\n${head}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd${inner}`,
    right: [400],
  },
  {
    name: 'a Transfer-Encoding that is none',
    sends: () => `POST /add HTTP/1.1\r\n${head}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n${inner}`,
    right: [400, 501],
  },
  {
    name: 'a header with a space before its colon',
    sends: (path) => `GET ${path} HTTP/1.1\r\n${head}Transfer-Encoding : chunked\r\n\r\n`,
    right: [400],
  },
  {
    name: 'a folded header',
    sends: (path) => `GET ${path} HTTP/1.1\r\n${head}a: b\r\n c\r\nConnection: close\r\n\r\n`,
    right: [200, 400],
  },
  { name: 'lines that end in LF alone', sends: (path) => `GET ${path} HTTP/1.1\nHost: a\n\n`, right: [400] },
  {
    name: 'a whole URL of another host',
    sends: (path) => `GET http://evil.example${path} HTTP/1.1\r\n${close}\r\n`,
    right: [400],
  },
  {
    name: 'a path with %2e%2e and %2f',
    sends: (path) => `GET ${path}/%2e%2e%2f%2e%2e%2fetc/passwd HTTP/1.1\r\n${close}\r\n`,
    right: [400, 404],
  },
  { name: 'HTTP/1.0', sends: (path) => `GET ${path} HTTP/1.0\r\n\r\n`, right: [200] },
  {
    name: 'a client that asks for a hot file and closes its half at once',
    sends: (path) => `GET ${path} HTTP/1.1\r\n${close}\r\n`,
    right: [200],
    how: 'half-closes',
  },
  {
    name: '200 clients that leave in the middle of 8 MiB',
    sends: (_path, large) => `GET ${large} HTTP/1.1\r\n${head}\r\n`,
    right: ['left'],
    sockets: 200,
    how: 'leaves',
  },
  {
    name: '100 clients that send a byte of their headers each second',
    sends: (path) => `GET ${path} HTTP/1.1\r\n${head}\r\n`,
    right: [408, 'cut', 'left'],
    sockets: 100,
    how: 'drips',
  },
  {
    name: '100 clients that never read on in 8 MiB',
    sends: (_path, large) => `GET ${large} HTTP/1.1\r\n${head}\r\n`,
    right: ['cut', 'left'],
    sockets: 100,
    how: 'reads slowly',
  },
  { name: '5,000 idle connections', sends: () => '', right: ['cut', 'left'], sockets: 5000, how: 'idles' },
]

const lastsMs = 3000

/** The status, or who closed it without one; it ends by itself when the attack has lasted long enough. */
function one(port: number, sent: string, how: WireFault['how']): Promise<number | 'cut' | 'left'> {
  return new Promise((resolve) => {
    const socket: Socket = connect({ port, host: '127.0.0.1', allowHalfOpen: how === 'half-closes' })
    let said = ''
    let hasLeft = false
    const leave = () => {
      hasLeft = true
      socket.destroy()
    }
    const timer = setTimeout(leave, lastsMs)
    socket.on('error', () => {})
    socket.on('close', () => {
      clearTimeout(timer)
      const status = /^HTTP\/1\.1 (\d+) /.exec(said)?.[1]
      const isWhole = status !== undefined && how !== 'leaves' && how !== 'reads slowly'
      resolve(isWhole ? Number(status) : hasLeft ? 'left' : 'cut')
    })
    socket.once('data', (piece: Buffer) => {
      said = piece.toString('latin1')
      if (how === 'leaves') leave()
      if (how === 'reads slowly') socket.pause()
      else if (!said.includes('Connection: close')) socket.end()
      else socket.resume()
    })
    if (how === 'drips') return void drip(socket, sent)
    if (sent) socket.write(sent)
    if (how === 'half-closes') socket.end()
  })
}

async function drip(socket: Socket, sent: string): Promise<void> {
  for (const letter of sent) {
    if (socket.destroyed) return
    socket.write(letter)
    await sleep(1000)
  }
}

export async function wireRow({ name, sends, right, sockets = 1, how }: WireFault): Promise<Row> {
  const blocks: BlockMap = new Map()
  const [hot, large] = [await addFile(blocks, noise(1000, 1)), await addFile(blocks, noise(8 * 1024 * 1024, 2))]
  const upstream = await startUpstream({ blocks })
  const at = await startGateway({
    upstreams: [{ name: 'well', url: upstream.url }],
    config: { limits: { headers: '2s', stalled: '2s', keepAlive: '2s', perClient: { perMinute: 10_000_000 } } },
  })
  const paths = [`/ipfs/${hot.cid}`, `/ipfs/${large.cid}`] as const
  try {
    for (const path of [paths[0], ...paths]) await fetchAll(at.url + path)
    const answers = Promise.all(
      Array.from({ length: sockets }, () => one(Number(new URL(at.url).port), sends(...paths), how)),
    )
    const beside = await hotCell(answers)
    const statuses = [...new Set(await answers)]
    const wrong = statuses.filter((status) => !right.includes(status))
    const answered: Cell = { measured: statuses.join(', '), broken: wrong.map((status) => `answered ${status}`) }
    const promised = `${right.join(' or ')}; hot answers within 1.0 s, and none refused`
    return { fault: name, promised, cells: [answered, beside, await afterCell()] }
  } finally {
    for (const running of [at, upstream]) await running.close()
  }

  async function hotCell(over: Promise<unknown>): Promise<Cell> {
    let isOver = false
    void over.then(() => {
      isOver = true
    })
    let worst = 0
    let refused = 0
    do {
      const began = performance.now()
      const got = await fetchAll(at.url + paths[0]).catch(() => undefined)
      if (got?.status !== 200) refused++
      worst = Math.max(worst, performance.now() - began)
      await sleep(20)
    } while (!isOver)
    const broken = [
      ...(refused > 0 ? [`${refused} refused`] : []),
      ...(worst > 1000 ? [`hot after ${inMs(worst)}`] : []),
    ]
    return { measured: `at most ${inMs(worst)}`, broken }
  }

  /** Its connections are let go, but for the one that asks. */
  async function afterCell(): Promise<Cell> {
    const began = performance.now()
    while (at.connections() > 1 && performance.now() - began < 5000) await sleep(20)
    const { status } = await fetchAll(at.url + paths[0])
    const isWell = status === 200 && at.connections() <= 1
    const measured = `${at.connections() <= 1 ? 'no connection' : `${at.connections()} connections`} left after ${inMs(performance.now() - began)}`
    return { measured, broken: isWell ? [] : ['not as good as new in time'] }
  }
}
