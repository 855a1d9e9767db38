// Connects a client's connection to `node:http`: the server uses it as the socket, while the front,
// which owns the real one, reads and writes byte for byte.
import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'

type Done = (error?: Error | null) => void

/** Pauses or resumes reading of the socket. */
export type LaneOwner = { laneIsRead(): void }

export class Lane extends Duplex {
  readonly #socket: Socket
  readonly #owner: LaneOwner
  /** Called when the kernel has taken everything written. */
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

  // Usually the kernel takes it at once. Otherwise waits, since the buffer may be reused
  // afterwards.
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

  /** Like a socket's, for a response that closes its connection. */
  destroySoon(): void {
    if (this.writable) this.end()
    if (this.writableFinished) this.destroy()
    else this.once('finish', this.destroy)
  }

  resetAndDestroy(): this {
    this.#socket.resetAndDestroy()
    return this.destroy()
  }

  /** The socket restarts the timer at each byte, and its owner reports the timeout. */
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
