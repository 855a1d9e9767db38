// A client's connection. A plain GET or HEAD that the response cache has is answered here by one
// write; all other bytes pass through a lane to `node:http`, one request at a time: the next one
// waits here, unparsed, until the previous response was sent.
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'
import { isUnixPeer, markUnixPeer } from '../core/wire/http.ts'
import type { CachedResponse } from '../http/content/response-cache.ts'
import { type OwnConnection, ownConnection } from '../http/wire/request.ts'
import type { Admitted, Refusals, Throttled } from './connections.ts'
import type { Front } from './front.ts'
import { asRequest, type Fields, type PassedBody, passedBody, readHead } from './request-head.ts'

// Node's parser refuses what is longer.
const maxHeadBytes = 16 * 1024
// A smaller body is copied: one write of a string is cheaper than two.
const joinedBytes = 4096
// The time in which the end of a client's side follows its request.
const halfCloseMs = 100

export class Connection implements Admitted, Throttled, OwnConnection {
  readonly socket: Socket
  refusals: Refusals | undefined
  readonly #host: Front
  #lane: Lane | undefined
  /** The number of requests so far. */
  #requests = 0
  /** True while a request is in the lane and its response is not sent. */
  #isOpen = false
  #answer: ServerResponse | undefined
  /** The time of the last bytes of a request. */
  #passedAt = 0
  /** The beginning of an incomplete head. */
  #begun = ''
  #body: PassedBody | undefined
  #fields: Fields | undefined
  /** True if only `node:http` can tell where the request ends: its response is then the last. */
  #isUnknown = false
  /** True if incoming bytes are no longer parsed. */
  #isDeaf = false
  /** Ends the accounting of a cached response that the client did not read at once. */
  #endPending: (() => void) | undefined
  /** Received bytes that wait. */
  #rest: Buffer | undefined
  #isPaused = false
  #isLaneFull = false

  constructor(socket: Socket, host: Front) {
    this.socket = socket
    this.#host = host
    socket.setTimeout(host.headersMs)
    socket.on('data', this.#onData)
    socket.on('end', this.#onEnd)
    socket.on('timeout', this.#onTimeout)
    socket.on('error', this.#onError)
    socket.on('close', this.#onClose)
  }

  /** True while a response is in progress. */
  get isBusy(): boolean {
    return this.#isOpen || this.socket.writableLength > 0 || this.#rest !== undefined
  }

  get isAnswered(): boolean {
    return this.socket.bytesWritten > 0
  }

  /** The response that `node:http` is handling. */
  get answer(): ServerResponse | undefined {
    return this.#answer
  }

  readonly #onData = (piece: Buffer): void => {
    if (this.#isDeaf) return
    if (this.#host.mayRead(this)) this.#read(piece)
    else this.#wait(piece)
  }

  #wait(piece: Buffer): void {
    this.#rest = this.#rest ? Buffer.concat([this.#rest, piece]) : piece
    this.#flow()
  }

  /** Parses waiting bytes if it may. */
  readonly goOn = (): void => {
    const rest = this.#rest
    if (!rest || this.#isPaused || this.socket.destroyed) return
    this.#rest = undefined
    this.#read(rest)
    this.#flow()
  }

  #read(piece: Buffer): void {
    let at = 0
    while (at < piece.byteLength && !this.#isDeaf) {
      if (this.#isUnknown) {
        this.#pass(piece, at, piece.byteLength)
        return
      }
      if (this.#body) {
        const end = this.#body.endIn(piece, at)
        const { state } = this.#body
        if (state !== 'open') this.#body = undefined
        if (state === 'unknown') this.#isUnknown = true
        this.#pass(piece, at, end)
        // `node:http` has copied it. V8 marks the heap for every 64 MiB of such memory that is left to it.
        if (end - at === piece.buffer.byteLength && this.#lane?.readableLength === 0)
          (piece.buffer as ArrayBuffer).transfer(0)
        at = end
      } else if (this.#begun === '' && (this.#isOpen || this.#endPending)) {
        this.#wait(at === 0 ? piece : piece.subarray(at))
        return
      } else if (at > 0 && this.#begun === '' && !this.#host.mayRead(this)) {
        this.#wait(piece.subarray(at))
        return
      } else if (this.#begun === '' && (this.socket.writableEnded || this.#lane?.writableEnded)) this.#isDeaf = true
      else at = this.#readHead(piece, at)
    }
  }

  /** Parses a head, or as much of it as has arrived. Returns the next offset. */
  #readHead(piece: Buffer, at: number): number {
    const { byteLength } = piece
    const before = this.#begun
    const text = before + piece.toString('latin1', at, byteLength)
    const found = text.indexOf('\r\n\r\n', Math.max(0, before.length - 3))
    if (found < 0) {
      this.#begin()
      this.#begun = text
      if (text.length > maxHeadBytes) this.#isUnknown = true
      this.#pass(piece, at, byteLength)
      return byteLength
    }
    const length = found + 4
    const end = at + length - before.length
    const head = readHead(length === text.length ? text : text.slice(0, length), this.#fields)
    if (!head) {
      if (before === '') this.#begin()
      this.#isUnknown = true
      this.#pass(piece, at, byteLength)
      return byteLength
    }
    this.#fields = head.fields
    if (before === '') {
      const { connection, isEachOnce } = head.fields
      if (isEachOnce && connection !== 'other' && (head.method === 'GET' || head.method === 'HEAD')) {
        const answer = this.#host.hot(asRequest(head, this.socket))
        if (answer) {
          this.#requests++
          this.#send(answer, connection === 'close' || (head.isOld && connection !== 'keep-alive'))
          return end
        }
      }
      this.#begin()
    }
    this.#begun = ''
    const { body } = head.fields
    if (body === undefined || (head.isOld && body === 'chunked')) this.#isUnknown = true
    else if (body !== 0) this.#body = passedBody(body)
    this.#pass(piece, at, this.#isUnknown ? byteLength : end)
    return this.#isUnknown ? byteLength : end
  }

  #send(answer: CachedResponse, isAskedToEnd: boolean): void {
    const { socket } = this
    const { body } = answer
    const isLast = this.#host.isEnding() || isAskedToEnd
    const head = this.#host.headOf(answer, isLast)
    if (body === undefined) socket.write(head, 'latin1', this.#onTaken)
    else if (body.byteLength <= joinedBytes) socket.write(head + body.toString('latin1'), 'latin1', this.#onTaken)
    else {
      socket.cork()
      socket.write(head, 'latin1')
      socket.write(body, this.#onTaken)
      socket.uncork()
    }
    if (socket.writableLength > 0) {
      this.#endPending = answer.holdPending()
      socket.setTimeout(answer.stalledMs)
    } else if (socket.timeout !== this.#host.keepAliveMs) socket.setTimeout(this.#host.keepAliveMs)
    if (!isLast) return
    this.#isDeaf = true
    socket.destroySoon()
  }

  readonly #onTaken = (): void => {
    if (!this.#endPending || this.socket.writableLength > 0) return
    this.#endPending()
    this.#endPending = undefined
    this.socket.setTimeout(this.#host.keepAliveMs)
    this.goOn()
    this.#host.answered(this)
  }

  /** From here on a request is in the lane. */
  #begin(): void {
    this.#isOpen = true
    this.#requests++
    if (this.socket.timeout) this.socket.setTimeout(0)
  }

  #pass(piece: Buffer, at: number, end: number): void {
    if (!this.#lane) {
      const lane = new Lane(this.socket, this)
      markUnixPeer(lane, isUnixPeer(this.socket))
      this.#lane = lane
      this.#host.open(lane)
    }
    this.#passedAt = performance.now()
    const isWhole = at === 0 && end === piece.byteLength
    if (this.#lane.push(isWhole ? piece : piece.subarray(at, end))) return
    this.#isLaneFull = true
    this.#flow()
  }

  /** Resumes reading of the socket. */
  laneIsRead(): void {
    if (!this.#isLaneFull) return
    this.#isLaneFull = false
    this.#flow()
  }

  /** `node:http` parsed a request of the lane. Returns false if it must not be answered. */
  enter(response: ServerResponse): boolean {
    if (this.#answer) {
      // It follows a request whose response is the last.
      this.ignore()
      return false
    }
    this.#answer = response
    if (this.#isUnknown || this.#host.isEnding()) response.shouldKeepAlive = false
    response.once('close', this.#onAnswered)
    return true
  }

  readonly #onAnswered = (): void => {
    const isKept = this.#answer?.req.complete === true && this.#answer.shouldKeepAlive
    this.#answer = undefined
    this.#isOpen = false
    // Its end may have been found only after its head.
    if (this.#isUnknown && !this.#lane?.writableEnded) this.#lane?.destroySoon()
    if (isKept && this.refusals?.ordinal === this.#requests) this.#host.throttle.answered(this)
    if (this.#rest && this.#host.mayRead(this)) this.goOn()
    this.#host.answered(this)
  }

  refused(): void {
    this.#host.throttle.refused(this, this.#requests)
  }

  /**
   * Closes with a self-contained response. Discards received bytes instead of resetting, which
   * would discard the response too.
   */
  end(answer: string): void {
    this.ignore()
    this.socket.end(answer)
  }

  /** `node:http` has consumed the received bytes, and parses requests anew. */
  tunnel(hasMore: boolean): void {
    this.#isUnknown = hasMore
    this.#isOpen = hasMore
    this.#begun = ''
  }

  /** Discards bytes from now on. */
  ignore(): void {
    this.#isDeaf = true
    this.#rest = undefined
    this.#flow()
  }

  pause(): void {
    this.#isPaused = true
    this.#flow()
  }

  resume(): void {
    this.#isPaused = false
    this.goOn()
    this.#flow()
  }

  #flow(): void {
    if (this.#rest || this.#isPaused || this.#isLaneFull) this.socket.pause()
    else if (this.socket.isPaused()) this.socket.resume()
  }

  /**
   * A client that closes its side right behind its request, or while it reads, gets the response; one
   * that does so while it waits has left, and nothing is fetched for it any longer.
   */
  readonly #onEnd = (): void => {
    const isWaiting = this.#answer?.headersSent === false && performance.now() - this.#passedAt > halfCloseMs
    if (isWaiting) this.socket.destroy()
    else if (this.#lane) this.#lane.push(null)
    else this.socket.end()
  }

  readonly #onTimeout = (): void => {
    if (this.#endPending) this.socket.resetAndDestroy()
    else if (this.#lane) this.#lane.emit('timeout')
    else if (this.#requests > 0) this.socket.destroy()
    else this.#host.onSilent(this)
  }

  readonly #onError = (error: Error): void => {
    this.#lane?.destroy(error)
  }

  readonly #onClose = (): void => {
    this.#endPending?.()
    this.#endPending = undefined
    this.#lane?.destroy()
    this.#host.over(this)
  }
}

type Done = (error?: Error | null) => void

export class Lane extends Duplex {
  readonly [ownConnection]: Connection
  readonly socket: Socket
  /** Called when the kernel has taken everything written. */
  #done: Done | undefined
  #writes = 0

  constructor(socket: Socket, connection: Connection) {
    super({
      allowHalfOpen: true,
      decodeStrings: false,
      writableHighWaterMark: socket.writableHighWaterMark,
      readableHighWaterMark: socket.readableHighWaterMark,
    })
    this.socket = socket
    this[ownConnection] = connection
  }

  override _read(): void {
    this[ownConnection].laneIsRead()
  }

  override _write(piece: string | Buffer, encoding: BufferEncoding, done: Done): void {
    this.#writes++
    this.socket.write(piece, encoding, this.#taken)
    this.#wait(done)
  }

  override _writev(pieces: { readonly chunk: string | Buffer; readonly encoding: BufferEncoding }[], done: Done): void {
    this.socket.cork()
    for (const { chunk, encoding } of pieces) {
      this.#writes++
      this.socket.write(chunk, encoding, this.#taken)
    }
    this.socket.uncork()
    this.#wait(done)
  }

  // Usually the kernel takes it at once. Otherwise waits, since the buffer may be reused
  // afterwards.
  #wait(done: Done): void {
    if (this.socket.writableLength === 0) done()
    else this.#done = done
  }

  readonly #taken = (error?: Error | null): void => {
    this.#writes--
    const done = this.#done
    if (!done || (this.#writes > 0 && !error)) return
    this.#done = undefined
    done(error)
  }

  override _final(done: Done): void {
    this.socket.end(() => done())
  }

  override _destroy(error: Error | null, done: Done): void {
    this.socket.destroy()
    done(error)
  }

  /** Like a socket's, for a response that closes its connection. */
  destroySoon(): void {
    if (this.writable) this.end()
    if (this.writableFinished) this.destroy()
    else this.once('finish', this.destroy)
  }

  resetAndDestroy(): this {
    this.socket.resetAndDestroy()
    return this.destroy()
  }

  /** The socket restarts the timer at each byte, and its owner reports the timeout. */
  setTimeout(ms: number, onTimeout?: () => void): this {
    this.socket.setTimeout(ms)
    if (onTimeout && ms > 0) this.once('timeout', onTimeout)
    else if (onTimeout) this.off('timeout', onTimeout)
    return this
  }

  setNoDelay = (): this => this
  setKeepAlive = (): this => this
  ref = (): this => this
  unref = (): this => this
}

// The members of a socket that `node:http` and handlers read.
for (const name of [
  ...(['timeout', 'bytesRead', 'bytesWritten', 'remoteAddress', 'remotePort', 'remoteFamily'] as const),
  ...(['localAddress', 'localPort'] as const),
])
  Object.defineProperty(Lane.prototype, name, {
    get(this: Lane): unknown {
      return this.socket[name]
    },
  })
