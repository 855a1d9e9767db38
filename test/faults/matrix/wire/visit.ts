// One client of the requests table: a socket that says what no usual client says, and what became of it.
import { connect, type Socket } from 'node:net'

export type How =
  | 'leaves' // in the middle of its answer
  | 'half-closes'
  | 'idles' // behind its answer, where it asks for something
  | 'stops reading' // behind the first piece
  | 'reads slowly' // a byte each second

export type Said = {
  /** At once. */
  readonly complete?: string
  /** Then, a byte each second. */
  readonly dripped?: string
}

export type VisitOptions = {
  readonly port: number
  readonly said: Said
  readonly how?: How | undefined
  /** It leaves then; one that reads slowly, or not at all, first reads what is there. */
  readonly staysMs: number
  /** Another address of this machine than the usual one. */
  readonly from?: string | undefined
}

/**
 * A status: its answer came complete. `cut`: the gateway closed the connection without an answer, or in the middle of it; `closed`: in
 * which nothing was under way. `left`: the client did. `two answers`: to what is one request.
 */
export type Outcome = number | 'cut' | 'closed' | 'left' | 'two answers'

/** `ms`: since it connected, or since its answer where it idles behind that. */
export type Told = { readonly outcome: Outcome; readonly ms: number }

export type Visit = {
  /** It is connected and has its answer, where it waits for one to idle behind it; or it is over. */
  readonly ready: Promise<unknown>
  readonly over: Promise<Told>
  /** Undefined while it lasts. */
  readonly told: Told | undefined
  leave(): void
}

/** For one that read slowly, what the system holds for it. */
const drainMs = 3000
const dripMs = 1000

export function visit({ port, said, how, staysMs, from }: VisitOptions): Visit {
  const answer = createAnswer()
  const ready = Promise.withResolvers<void>()
  const over = Promise.withResolvers<Told>()
  let told: Told | undefined
  let hasLeft = false
  let since = performance.now()
  const isSlow = how === 'stops reading' || how === 'reads slowly'
  const pace = how === 'reads slowly' ? createPace() : undefined
  const socket: Socket = connect({
    port,
    host: '127.0.0.1',
    allowHalfOpen: how === 'half-closes',
    ...(from && { localAddress: from }),
    ...(pace && { onread: { buffer: pace.buffer, callback: onSlowPiece } }),
  })
  const leave = () => {
    hasLeft = true
    socket.destroy()
  }
  let timer = setTimeout(isSlow ? hurry : leave, staysMs)
  let dripping: NodeJS.Timeout | undefined

  function hurry(): void {
    pace?.hurry()
    socket.resume()
    timer = setTimeout(leave, drainMs)
  }

  function onPiece(piece: Uint8Array): void {
    const isFirst = answer.bytes === 0
    answer.add(piece)
    if (how === 'leaves') return leave()
    if (how === 'stops reading' && isFirst) return void socket.pause()
    if (!answer.isWhole || isSlow) return
    if (how === 'idles' && answer.status === 200) since = performance.now()
    ready.resolve()
    if (how !== 'idles') socket.end()
  }

  function onSlowPiece(count: number, buffer: Uint8Array): boolean {
    onPiece(buffer.subarray(0, count))
    if (pace?.isHurried) return true
    setTimeout(() => socket.resume(), dripMs)
    return false
  }

  socket.on('data', onPiece)
  socket.on('error', () => {})
  socket.on('close', () => {
    clearTimeout(timer)
    clearInterval(dripping)
    const isIdle = how === 'idles' && answer.status === 200
    const byGateway = answer.isWhole ? (isIdle ? 'closed' : answer.status) : 'cut'
    const outcome = answer.isMore ? 'two answers' : hasLeft ? 'left' : byGateway
    told = { outcome, ms: performance.now() - since }
    ready.resolve()
    over.resolve(told)
  })
  socket.on('connect', () => {
    since = performance.now()
    if (said.complete) socket.write(said.complete)
    else ready.resolve()
    if (how === 'half-closes') socket.end()
    if (said.dripped) dripping = drip(socket, said.dripped)
  })
  return {
    ready: ready.promise,
    over: over.promise,
    get told() {
      return told
    },
    leave,
  }
}

function drip(socket: Socket, said: string): NodeJS.Timeout {
  let at = 0
  return setInterval(() => {
    const letter = said[at++]
    if (letter !== undefined && socket.writable) socket.write(letter)
  }, dripMs)
}

/** A byte at a time, of what the system has; the rest of it at once when it hurries. */
function createPace() {
  const [one, many] = [Buffer.alloc(1), Buffer.alloc(256 * 1024)]
  let isHurried = false
  return {
    buffer: (): Uint8Array => (isHurried ? many : one),
    hurry() {
      isHurried = true
    },
    get isHurried() {
      return isHurried
    },
  }
}

/** The first answer in a connection. */
function createAnswer() {
  let head = ''
  let isRead = false
  let bytes = 0
  let missing = Number.POSITIVE_INFINITY
  let status = 0
  return {
    add(piece: Uint8Array) {
      bytes += piece.byteLength
      missing -= piece.byteLength
      if (isRead) return
      head += Buffer.from(piece).toString('latin1')
      const end = head.indexOf('\r\n\r\n')
      if (end < 0) return
      isRead = true
      status = Number(/^HTTP\/1\.1 (\d+) /.exec(head)?.[1] ?? 0)
      missing = Number(/^content-length: (\d+)/im.exec(head)?.[1] ?? 0) - (head.length - end - 4)
    },
    get bytes() {
      return bytes
    },
    get status() {
      return status
    },
    get isWhole() {
      return isRead && missing <= 0
    },
    get isMore() {
      return isRead && missing < 0
    },
  }
}
