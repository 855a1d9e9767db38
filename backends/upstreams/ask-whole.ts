// One question to an upstream by the same rules as in ask.ts, without a stream: most blocks come in one or two pieces, and a stream, its
// iterator and its signals cost more than the block. `WholeAsk` gives the body whole, for a block.
import type { Dispatcher } from 'undici'
import { onceLate } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
import { oneOf } from '../../src/core/wire/http.ts'
import {
  elsewhere,
  type HttpQuestion,
  isStaleSocket,
  late,
  redirections,
  refusal,
  translate,
  unlikeAsked,
} from './ask.ts'
import { followed, maxHops } from './redirects.ts'

export type PushedQuestion = Omit<HttpQuestion, 'url' | 'method' | 'signal'> & {
  readonly url: string
  /** Of `asPlain`: made once for each upstream, and not for each question. */
  readonly headers: Readonly<Record<string, string>>
}

export type WholeQuestion = PushedQuestion & { readonly maxBytes: number }

/** Called once, unless the question is stopped before. `contentLength`: what the upstream said; undefined: nothing. */
export interface WholeAnswer {
  came(bytes: Uint8Array, contentLength: number | undefined): void
  failed(error: unknown): void
}

/** Adds a request for an uncompressed body. */
export const asPlain = (headers: Readonly<Record<string, string>>): Readonly<Record<string, string>> => ({
  ...headers,
  'accept-encoding': 'identity',
})

const maxErrorBytes = 4096
const nothing = Buffer.alloc(0)

type Headers = Parameters<NonNullable<Dispatcher.DispatchHandler['onResponseStart']>>[2]

/** A question that is the handler of its own answer, which may come after a redirect, or on a second socket where the first was stale. */
export abstract class PushedAsk implements Dispatcher.DispatchHandler {
  protected readonly question: PushedQuestion
  protected controller: Dispatcher.DispatchController | undefined
  protected isOver = false
  /** When its bytes moved last; undefined: it has not begun. */
  protected movedAt: number | undefined
  #url: string
  #hops = 0
  #isMoving = false
  #wasStale = false
  /** What it says with a refusal, as far as it is read. */
  #said: { readonly status: number; readonly retryAfter: string | undefined; text: string } | undefined
  #dueAt = 0
  #stopTimer: (() => void) | undefined

  constructor(question: PushedQuestion) {
    this.question = question
    this.#url = question.url
  }

  /** The answer is what was asked for. `length`: what the upstream said; undefined: nothing. */
  protected abstract begin(length: number | undefined): void
  protected abstract data(chunk: Uint8Array): void
  protected abstract end(): void
  protected abstract failed(error: unknown): void
  /** What came does not matter: it may be asked for again on a new socket. */
  protected abstract readonly mayAskAgain: boolean
  /** No one wants bytes now: silence is none of the upstream. */
  protected get isHeld(): boolean {
    return false
  }

  /** Releases the socket; no callback is called after that. */
  stop(): void {
    if (this.finish()) this.controller?.abort(enough)
  }

  protected dispatch(): void {
    const { agent, headers, firstByteMs } = this.question
    this.controller = undefined
    this.movedAt = undefined
    this.#wait(firstByteMs)
    const from = this.#url.indexOf('/', this.#url.indexOf('//') + 2)
    try {
      agent.dispatch({ origin: this.#url.slice(0, from), path: this.#url.slice(from), method: 'GET', headers }, this)
    } catch (error) {
      this.onResponseError(undefined, error as Error)
    }
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.controller = controller
    if (this.isOver) controller.abort(enough)
  }

  onResponseStart(_controller: unknown, status: number, headers: Headers): void {
    if (this.isOver || status < 200) return
    if (redirections.has(status)) return this.#follow(status, oneOf(headers['location']))
    const { clock, idleMs } = this.question
    this.movedAt = clock.monotonic()
    if (this.movedAt + idleMs < this.#dueAt) this.#wait(idleMs)
    if (status !== 200) {
      this.#said = { status, retryAfter: oneOf(headers['retry-after']), text: '' }
      return
    }
    const wrong = unlikeAsked(this.question, headers)
    if (wrong) return this.fail(wrong)
    const told = oneOf(headers['content-length'])
    this.begin(told === undefined ? undefined : Number(told))
  }

  onResponseData(_controller: unknown, chunk: Uint8Array): void {
    if (this.isOver) return
    this.movedAt = this.question.clock.monotonic()
    if (!this.#said) return this.data(chunk)
    this.#said.text += Buffer.from(chunk).toString('utf8')
    if (this.#said.text.length >= maxErrorBytes) this.#refuse()
  }

  onResponseEnd(): void {
    if (this.isOver) return
    if (this.#said) this.#refuse()
    else this.end()
  }

  onResponseError(_controller: unknown, error: Error): void {
    if (this.isOver || this.#isMoving) return
    if (this.#said) return this.#refuse()
    const failure = translate(this.question.name, error)
    if (this.#wasStale || !this.mayAskAgain || !isStaleSocket(failure)) return this.fail(failure)
    // A connection that the server closed says little about the upstream: try once more on a new one.
    this.#wasStale = true
    this.#dispatchAgain()
  }

  /**
   * Dispatched later, because undici's client is still ending the request whose handler runs now.
   */
  #dispatchAgain(): void {
    queueMicrotask(() => {
      if (!this.isOver) this.dispatch()
    })
  }

  #follow(status: number, location: string | undefined): void {
    const { name, redirects = 'site', url } = this.question
    const site = new URL(url)
    const target = followed(location, { site, from: new URL(this.#url), redirects })
    if (!target || this.#hops++ === maxHops[redirects]) return this.fail(elsewhere(name, status, location, site))
    this.#isMoving = true
    this.controller?.abort(enough)
    this.#isMoving = false
    this.#url = target.href
    this.#dispatchAgain()
  }

  #refuse(): void {
    if (!this.#said) return
    const { status, retryAfter, text } = this.#said
    const said = text.slice(0, maxErrorBytes)
    this.fail(refusal(this.question.name, status, retryAfter, said, this.question.clock.now()))
  }

  protected fail(error: unknown): void {
    if (!this.finish()) return
    this.controller?.abort(enough)
    this.failed(error)
  }

  /** False: it was over already. */
  protected finish(): boolean {
    if (this.isOver) return false
    this.isOver = true
    this.#stopTimer?.()
    return true
  }

  /** One timer for the first byte and for later silence: most responses end before it fires. */
  #wait(ms: number): void {
    const { name, clock, firstByteMs, idleMs } = this.question
    this.#stopTimer?.()
    this.#dueAt = clock.monotonic() + ms
    this.#stopTimer = onceLate(clock, ms, () => {
      if (this.movedAt === undefined) return this.fail(late(name, 'begin to answer', firstByteMs))
      const left = this.isHeld ? idleMs : this.movedAt + idleMs - clock.monotonic()
      if (left > 0) this.#wait(left)
      else this.fail(late(name, 'go on', idleMs))
    })
  }
}

export class WholeAsk extends PushedAsk {
  readonly #maxBytes: number
  readonly #answer: WholeAnswer
  #body: Buffer = nothing
  #taken = 0
  #length: number | undefined

  constructor(question: WholeQuestion, answer: WholeAnswer) {
    super(question)
    this.#maxBytes = question.maxBytes
    this.#answer = answer
    this.dispatch()
  }

  protected get mayAskAgain(): boolean {
    return true
  }

  protected begin(length: number | undefined): void {
    this.#taken = 0
    this.#length = length
    this.#body = nothing
    if (length === undefined) return
    if (length > this.#maxBytes) this.fail(tooLarge(this.question.name, this.#maxBytes))
    // A memory of its own, of just this size: what keeps the block keeps nothing else alive.
    else this.#body = Buffer.allocUnsafeSlow(length)
  }

  protected data(chunk: Uint8Array): void {
    const taken = this.#taken + chunk.byteLength
    if (taken > this.#maxBytes) return this.fail(tooLarge(this.question.name, this.#maxBytes))
    if (taken > this.#body.byteLength) {
      const larger = Buffer.allocUnsafeSlow(Math.max(taken, this.#body.byteLength * 2))
      this.#body.copy(larger, 0, 0, this.#taken)
      this.#body = larger
    }
    this.#body.set(chunk, this.#taken)
    this.#taken = taken
  }

  protected end(): void {
    if (this.#length !== undefined && this.#taken !== this.#length) {
      const what = `${this.question.name} sent ${this.#taken} of ${this.#length} bytes`
      return this.fail(new Failure('upstream-error', what, { source: 'upstream' }))
    }
    this.finish()
    const isWhole = this.#taken === this.#body.byteLength
    const bytes = isWhole ? this.#body : Buffer.from(Uint8Array.prototype.slice.call(this.#body, 0, this.#taken).buffer)
    this.#answer.came(bytes, this.#length)
  }

  protected failed(error: unknown): void {
    this.#answer.failed(error)
  }
}

export const enough = new Failure('cancelled', 'the answer is not needed any more', { source: 'ours' })

export const tooLarge = (name: string, maxBytes: number): Failure =>
  new Failure('too-large', `${name} sent more than ${maxBytes} bytes`, { source: 'upstream' })
