// The way of a connection into `node:http`: for the server it is the socket; byte for byte, it is read and written through the
// front, which owns the real one.
import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'

type Done = (error?: Error | null) => void

/** Makes the socket read on or not. */
export type LaneOwner = { laneIsRead(): void }

export class Lane extends Duplex {
  readonly #socket: Socket
  readonly #owner: LaneOwner
  /** Called when the system has taken all that was written. */
  #done: Done | undefined
  #writes = 0

  constructor(socket: Socket, owner: LaneOwner) {
    super({
      allowHalfOpen: true,
      decodeStrings: false,
      writableHighWaterMark: socket.writableHighWaterMark,
      readableHighWaterMark: socket.readableHighWaterMark,
    })
    this.#socket = socket
    this.#owner = owner
  }

  override _read(): void {
    this.#owner.laneIsRead()
  }

  override _write(piece: string | Buffer, encoding: BufferEncoding, done: Done): void {
    this.#writes++
    this.#socket.write(piece, encoding, this.#taken)
    this.#wait(done)
  }

  override _writev(pieces: { readonly chunk: string | Buffer; readonly encoding: BufferEncoding }[], done: Done): void {
    this.#socket.cork()
    for (const { chunk, encoding } of pieces) {
      this.#writes++
      this.#socket.write(chunk, encoding, this.#taken)
    }
    this.#socket.uncork()
    this.#wait(done)
  }

  // Mostly the system takes it at once. Else it is waited for: what is written may be lent until it is taken.
  #wait(done: Done): void {
    if (this.#socket.writableLength === 0) done()
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
    this.#socket.end(() => done())
  }

  override _destroy(error: Error | null, done: Done): void {
    this.#socket.destroy()
    done(error)
  }

  /** As that of a socket, for an answer that ends its connection. */
  destroySoon(): void {
    if (this.writable) this.end()
    if (this.writableFinished) this.destroy()
    else this.once('finish', this.destroy)
  }

  resetAndDestroy(): this {
    this.#socket.resetAndDestroy()
    return this.destroy()
  }

  /** The socket tells each byte that goes in or out, and its owner the end of the time. */
  setTimeout(ms: number, onTimeout?: () => void): this {
    this.#socket.setTimeout(ms)
    if (onTimeout && ms > 0) this.once('timeout', onTimeout)
    else if (onTimeout) this.off('timeout', onTimeout)
    return this
  }

  setNoDelay = (): this => this
  setKeepAlive = (): this => this
  ref = (): this => this
  unref = (): this => this

  get timeout(): number | undefined {
    return this.#socket.timeout
  }

  get bytesRead(): number {
    return this.#socket.bytesRead
  }

  get bytesWritten(): number {
    return this.#socket.bytesWritten
  }

  get remoteAddress(): string | undefined {
    return this.#socket.remoteAddress
  }

  get remotePort(): number | undefined {
    return this.#socket.remotePort
  }

  get remoteFamily(): string | undefined {
    return this.#socket.remoteFamily
  }

  get localAddress(): string | undefined {
    return this.#socket.localAddress
  }

  get localPort(): number | undefined {
    return this.#socket.localPort
  }
}
