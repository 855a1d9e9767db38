// One connection of a client. A plain GET or HEAD that the response cache has is answered here, by one write; every other byte goes
// on to `node:http` through a lane, one request after another: the next one waits here, unread, until the answer before it is out.
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { isUnixPeer, markUnixPeer } from '../core/wire/loopback.ts'
import type { HotAnswer } from '../http/content/hot-answers.ts'
import { markOwn, type OwnConnection } from '../http/wire/own-server.ts'
import type { RequestHead } from '../http/wire/request-head.ts'
import type { Admitted } from './connections.ts'
import { Lane } from './lane.ts'
import { asRequest, type Fields, type PassedBody, passedBody, readHead } from './request-head.ts'
import type { Refusals, Throttle, Throttled } from './throttle.ts'

/** The front, as its connections see it. */
export interface ConnectionHost {
  readonly throttle: Throttle
  readonly keepAliveMs: number
  readonly headersMs: number
  /** The answer of the response cache. Undefined: `node:http` has to find one. */
  hot(request: RequestHead): HotAnswer | undefined
  /** `node:http` reads from this lane from now on. */
  open(lane: Lane): void
  /** The head of a hot answer. */
  headOf(answer: HotAnswer, isLast: boolean): string
  /** True: this connection ends with the answer that is about to be written. */
  isEnding(): boolean
  /** False: others go first; `connection.goOn` is called when it is its turn. */
  isItsTurn(connection: Connection): boolean
  /** Ends the connection, which sent nothing in time. */
  isLate(connection: Connection): void
  /** The answer to a request is out. */
  answered(connection: Connection): void
  over(connection: Connection): void
}

// Node's parser refuses what is longer.
const maxHeadBytes = 16 * 1024
// A small body is copied: one write of a string costs less than two pieces.
const joinedBytes = 4096

export class Connection implements Admitted, Throttled, OwnConnection {
  readonly socket: Socket
  refusals: Refusals | undefined
  readonly #host: ConnectionHost
  #lane: Lane | undefined
  /** How many requests came. */
  #requests = 0
  /** A request is in the lane, and its answer is not out. */
  #isOpen = false
  #answer: ServerResponse | undefined
  /** The beginning of a head whose end did not come yet. */
  #begun = ''
  #body: PassedBody | undefined
  #fields: Fields | undefined
  /** Nobody but `node:http` knows where its request ends: the answer to it is the last one. */
  #isUnknown = false
  /** Nothing that comes is read as a request any more. */
  #isDeaf = false
  /** Ends a hot answer that the client did not take at once. */
  #unread: (() => void) | undefined
  /** Came, and waits. */
  #rest: Buffer | undefined
  #isHeld = false
  #isLaneFull = false

  constructor(socket: Socket, host: ConnectionHost) {
    this.socket = socket
    this.#host = host
    socket.setTimeout(host.headersMs)
    socket.on('data', this.#onData)
    socket.on('end', this.#onEnd)
    socket.on('timeout', this.#onTimeout)
    socket.on('error', this.#onError)
    socket.on('close', this.#onClose)
  }

  /** An answer is under way. */
  get isBusy(): boolean {
    return this.#isOpen || this.socket.writableLength > 0 || this.#rest !== undefined
  }

  get isAnswered(): boolean {
    return this.socket.bytesWritten > 0
  }

  /** Of the request that `node:http` is at. */
  get answer(): ServerResponse | undefined {
    return this.#answer
  }

  readonly #onData = (piece: Buffer): void => {
    if (this.#isDeaf) return
    if (this.#host.isItsTurn(this)) this.#read(piece)
    else this.#wait(piece)
  }

  #wait(piece: Buffer): void {
    this.#rest = this.#rest ? Buffer.concat([this.#rest, piece]) : piece
    this.#flow()
  }

  /** Reads what waits, if it need not wait any longer. */
  readonly goOn = (): void => {
    const rest = this.#rest
    if (!rest || this.#isHeld || this.socket.destroyed) return
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
        at = end
      } else if (this.#begun === '' && (this.#isOpen || this.#unread)) {
        this.#wait(at === 0 ? piece : piece.subarray(at))
        return
      } else if (at > 0 && this.#begun === '' && !this.#host.isItsTurn(this)) {
        this.#wait(piece.subarray(at))
        return
      } else if (this.#begun === '' && (this.socket.writableEnded || this.#lane?.writableEnded)) this.#isDeaf = true
      else at = this.#readHead(piece, at)
    }
  }

  /** A head, or as much of it as there is. The answer: where to read on. */
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

  #send(answer: HotAnswer, isAskedToEnd: boolean): void {
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
      this.#unread = answer.holdUnread()
      socket.setTimeout(answer.stalledMs)
    } else if (socket.timeout !== this.#host.keepAliveMs) socket.setTimeout(this.#host.keepAliveMs)
    if (!isLast) return
    this.#isDeaf = true
    socket.destroySoon()
  }

  readonly #onTaken = (): void => {
    if (!this.#unread || this.socket.writableLength > 0) return
    this.#unread()
    this.#unread = undefined
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
      markOwn(lane, this)
      markUnixPeer(lane, isUnixPeer(this.socket))
      this.#lane = lane
      this.#host.open(lane)
    }
    const isWhole = at === 0 && end === piece.byteLength
    if (this.#lane.push(isWhole ? piece : piece.subarray(at, end))) return
    this.#isLaneFull = true
    this.#flow()
  }

  laneIsRead(): void {
    if (!this.#isLaneFull) return
    this.#isLaneFull = false
    this.#flow()
  }

  /** `node:http` read a request of the lane. False: it is not to be answered. */
  enter(response: ServerResponse): boolean {
    if (this.#answer) {
      // It stands behind one whose answer is the last.
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
    // It may have been found out behind its head, which promised more.
    if (this.#isUnknown && !this.#lane?.writableEnded) this.#lane?.destroySoon()
    if (isKept && this.refusals?.ordinal === this.#requests) this.#host.throttle.answered(this)
    if (this.#rest && this.#host.isItsTurn(this)) this.goOn()
    this.#host.answered(this)
  }

  refused(): void {
    this.#host.throttle.refused(this, this.#requests)
  }

  /** Ends it with an answer that stands for itself. What came, and what comes, is passed over: a reset would take the answer along. */
  end(answer: string): void {
    this.ignore()
    this.socket.end(answer)
  }

  /** `node:http` is done with what came, and reads requests anew. */
  tunnel(hasMore: boolean): void {
    this.#isUnknown = hasMore
    this.#isOpen = hasMore
    this.#begun = ''
  }

  /** What comes from now on is passed over. */
  ignore(): void {
    this.#isDeaf = true
    this.#rest = undefined
    this.#flow()
  }

  hold(): void {
    this.#isHeld = true
    this.#flow()
  }

  release(): void {
    this.#isHeld = false
    this.goOn()
    this.#flow()
  }

  #flow(): void {
    if (this.#rest || this.#isHeld || this.#isLaneFull) this.socket.pause()
    else if (this.socket.isPaused()) this.socket.resume()
  }

  readonly #onEnd = (): void => {
    if (this.#lane) this.#lane.push(null)
    else this.socket.end()
  }

  readonly #onTimeout = (): void => {
    if (this.#unread) this.socket.resetAndDestroy()
    else if (this.#lane) this.#lane.emit('timeout')
    else if (this.#requests > 0) this.socket.destroy()
    else this.#host.isLate(this)
  }

  readonly #onError = (error: Error): void => {
    this.#lane?.destroy(error)
  }

  readonly #onClose = (): void => {
    this.#unread?.()
    this.#unread = undefined
    this.#lane?.destroy()
    this.#host.over(this)
  }
}
