// A load generator of its own process: so many connections, each with a request on its way, for so long. It counts
// whole answers by their length and prints one line of JSON.
import { connect } from 'node:net'

const [target = '', path = '/', seconds = '2', connections = '64', depth = '1'] = process.argv.slice(2)
const { hostname, port } = new URL(target)
const request = Buffer.from(`GET ${path} HTTP/1.1\r\nHost: ${hostname}:${port}\r\n\r\n`)

let answers = 0
let wrong = 0
let size = 0

/** The length of one answer, learnt from the first: head and Content-Length. */
function sizeOf(head: Buffer): number {
  const end = head.indexOf('\r\n\r\n')
  if (end < 0) return 0
  const text = head.toString('latin1', 0, end)
  if (!text.startsWith('HTTP/1.1 200')) throw new Error(`the server answered ${text.split('\r\n')[0]}`)
  return end + 4 + Number(/content-length: (\d+)/i.exec(text)?.[1])
}

let stopAt = Number.POSITIVE_INFINITY

function open(): void {
  let held = 0
  let first: Buffer = Buffer.alloc(0)
  let sent = 0
  const socket = connect(Number(port), hostname, () => {
    for (let count = 0; count < Number(depth); count++) send()
  })
  socket.setNoDelay(true)
  const send = () => {
    sent++
    socket.write(request)
  }
  socket.on('data', (chunk) => {
    if (size === 0) {
      first = Buffer.concat([first, chunk])
      size = sizeOf(first)
      if (size === 0) return
      held = first.length
    } else held += chunk.length
    let done = 0
    while (held >= size) {
      held -= size
      done++
    }
    answers += done
    if (performance.now() > stopAt) return void socket.destroy()
    for (; done > 0; done--) send()
  })
  socket.on('error', () => wrong++)
  // A server closes a connection after so many requests; that is what it should do.
  socket.on('close', () => {
    if (performance.now() < stopAt && sent > 0) open()
  })
}

for (let count = 0; count < Number(connections); count++) open()
setTimeout(() => {
  const began = performance.now()
  const warm = answers
  stopAt = began + Number(seconds) * 1000
  setTimeout(() => {
    const perSecond = (answers - warm) / ((performance.now() - began) / 1000)
    process.stdout.write(`${JSON.stringify({ answers, perSecond: Math.round(perSecond), wrong })}\n`)
    process.exit(0)
  }, Number(seconds) * 1000)
}, 300)
