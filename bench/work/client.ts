// The load: a number of connections, each with one request in progress. Reads complete responses by
// their length, counts them by status, and prints one line of JSON. Ends after its list, or repeats
// it for a number of seconds.
import { readFileSync } from 'node:fs'
import { connect } from 'node:net'

export type Load = {
  readonly url: string
  readonly connections: number
  /** Undefined means the list once. */
  readonly seconds?: number
  readonly requests: readonly {
    readonly path: string
    readonly headers?: string
    readonly method?: string
    readonly bodyFile?: string
  }[]
}

export type Done = {
  readonly answers: number
  /** Bytes of bodies. */
  readonly bytes: number
  readonly seconds: number
  readonly statuses: Readonly<Record<string, number>>
  readonly broken: number
}

const load = JSON.parse(readFileSync(process.argv[2] ?? '', 'utf8')) as Load
const { hostname, port } = new URL(load.url)
const messages = load.requests.map(({ path, headers = '', method = 'GET', bodyFile }) => {
  const body = bodyFile === undefined ? undefined : readFileSync(bodyFile)
  const length = body ? `Content-Length: ${body.byteLength}\r\n` : ''
  const head = Buffer.from(`${method} ${path} HTTP/1.1\r\nHost: ${hostname}:${port}\r\n${headers}${length}\r\n`)
  return body ? Buffer.concat([head, body]) : head
})
const began = performance.now()
const stopAt = load.seconds === undefined ? undefined : began + load.seconds * 1000
const statuses: Record<string, number> = {}
/** The end of a chunked response: its last line and a few trailers. */
const longestTail = 1024
let [at, answers, bytes, broken, open] = [0, 0, 0, 0, 0]

function next(): Buffer | undefined {
  if (stopAt === undefined) return messages[at++]
  return performance.now() > stopAt ? undefined : messages[at++ % messages.length]
}

function done(): void {
  if (open > 0) return
  const seconds = (performance.now() - began) / 1000
  process.stdout.write(`${JSON.stringify({ answers, bytes, seconds, statuses, broken } satisfies Done)}\n`)
}

function dial(message: Buffer): void {
  open++
  let current: Buffer | undefined = message
  let head = ''
  let remaining = -1
  let isLast = false
  let isChunked = false
  let tail = ''
  const socket = connect(Number(port), hostname, () => socket.write(message))
  socket.setNoDelay(true)
  const finish = () => {
    answers++
    remaining = -1
    head = ''
    current = next()
    if (!current) return void socket.end()
    if (isLast) socket.end()
    else socket.write(current)
  }
  socket.on('data', (chunk: Buffer) => {
    let rest = chunk
    while (rest.byteLength > 0) {
      if (remaining < 0) {
        head += rest.toString('latin1')
        const end = head.indexOf('\r\n\r\n')
        if (end < 0) return
        const over = Buffer.byteLength(head, 'latin1') - end - 4
        rest = rest.subarray(rest.byteLength - over)
        const status = head.slice(9, 12)
        statuses[status] = (statuses[status] ?? 0) + 1
        isLast = /\r\nconnection: close/i.test(head)
        const length = /\r\ncontent-length: (\d+)/i.exec(head.slice(0, end))?.[1]
        isChunked = length === undefined && /\r\ntransfer-encoding: chunked/i.test(head.slice(0, end))
        if (length === undefined && !isChunked && status !== '304')
          throw new Error(`an answer without a length: ${head.slice(0, end)}`)
        remaining = status === '304' ? 0 : Number(length ?? 0)
        tail = ''
      }
      if (isChunked) {
        // Counted with the chunk headers. One request is in progress, so an end is its end.
        bytes += rest.byteLength
        tail = (tail + rest.subarray(-longestTail).toString('latin1')).slice(-longestTail)
        if (!/(^|\r\n)0\r\n(.+\r\n)*\r\n$/.test(tail)) {
          remaining = 1
          return
        }
        finish()
        return
      }
      const taken = Math.min(remaining, rest.byteLength)
      bytes += taken
      remaining -= taken
      rest = rest.subarray(taken)
      if (remaining > 0) return
      finish()
      if (!current) return
    }
  })
  socket.on('error', () => broken++)
  // Servers may close a connection after a number of requests.
  socket.on('close', () => {
    open--
    if (current) dial(current)
    else done()
  })
}

for (let count = 0; count < load.connections; count++) {
  const message = next()
  if (message) dial(message)
}
