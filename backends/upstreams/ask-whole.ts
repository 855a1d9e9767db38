// A request to an upstream for a complete block. It follows the rules of ask.ts without a stream:
// most blocks arrive in one or two chunks, and a stream, its iterator and its signals cost more
// than the block.
import type { Dispatcher } from 'undici'
import { onceLate } from '../../src/core/deadline.ts'
import { Failure } from '../../src/core/failure.ts'
import { oneOf } from '../../src/core/header.ts'
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
import { followed, mostHops } from './redirects.ts'

export type WholeQuestion = Omit<HttpQuestion, 'url' | 'method' | 'signal'> & {
  readonly url: string
  readonly maxBytes: number
  /** Made by `asPlain` once per upstream, not per request. */
  readonly headers: Readonly<Record<string, string>>
}

/**
 * Called once, unless the request is stopped before. `contentLength`: as declared by the upstream;
 * undefined if it declared none.
 */
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

/**
 * The request is its own response handler. The response may follow a redirect, or come over a
 * second socket if the first was stale.
 */
export class WholeAsk implements Dispatcher.DispatchHandler {
  readonly #question: WholeQuestion
  readonly #answer: WholeAnswer
  #url: string
  #hops = 0
  #controller: Dispatcher.DispatchController | undefined
  #isOver = false
  #isMoving = false
  #wasStale = false
  #body: Buffer = nothing
  #taken = 0
  #length: number | undefined
  /** The beginning of the body of an error response. */
  #said: { readonly status: number; readonly retryAfter: string | undefined } | undefined
  /** The time of its last progress; undefined before the first. */
  #movedAt: number | undefined
  #dueAt = 0
  #stopTimer: (() => void) | undefined

  constructor(question: WholeQuestion, answer: WholeAnswer) {
    this.#question = question
    this.#answer = answer
    this.#url = question.url
    this.#dispatch()
  }

  /** Releases the socket; no callback is called after that. */
  stop(): void {
    if (this.#end()) this.#controller?.abort(enough)
  }

  #dispatch(): void {
    const { agent, headers, firstByteMs } = this.#question
    this.#controller = undefined
    this.#movedAt = undefined
    this.#wait(firstByteMs)
    const from = this.#url.indexOf('/', this.#url.indexOf('//') + 2)
    try {
      agent.dispatch({ origin: this.#url.slice(0, from), path: this.#url.slice(from), method: 'GET', headers }, this)
    } catch (error) {
      this.onResponseError(undefined, error as Error)
    }
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    if (this.#isOver) controller.abort(enough)
  }

  onResponseStart(_controller: unknown, status: number, headers: Headers): void {
    if (this.#isOver || status < 200) return
    if (redirections.has(status)) return this.#follow(status, oneOf(headers['location']))
    const { name, clock, idleMs, maxBytes } = this.#question
    this.#movedAt = clock.monotonic()
    if (this.#movedAt + idleMs < this.#dueAt) this.#wait(idleMs)
    if (status !== 200) {
      this.#said = { status, retryAfter: oneOf(headers['retry-after']) }
      return
    }
    const wrong = unlikeAsked(this.#question, headers)
    if (wrong) return this.#fail(wrong)
    const told = oneOf(headers['content-length'])
    if (told === undefined) return
    this.#length = Number(told)
    if (this.#length > maxBytes) this.#fail(tooLarge(name, maxBytes))
    // Memory of exactly this size, so that keeping the block keeps nothing else alive.
    else this.#body = Buffer.allocUnsafeSlow(this.#length)
  }

  onResponseData(_controller: unknown, chunk: Uint8Array): void {
    if (this.#isOver) return
    const { name, clock, maxBytes } = this.#question
    this.#movedAt = clock.monotonic()
    const taken = this.#taken + chunk.byteLength
    if (!this.#said && taken > maxBytes) return this.#fail(tooLarge(name, maxBytes))
    if (taken > this.#body.byteLength) {
      const larger = Buffer.allocUnsafeSlow(Math.max(taken, this.#body.byteLength * 2))
      this.#body.copy(larger, 0, 0, this.#taken)
      this.#body = larger
    }
    this.#body.set(chunk, this.#taken)
    this.#taken = taken
    if (this.#said && taken >= maxErrorBytes) this.#refuse()
  }

  onResponseEnd(): void {
    if (this.#isOver) return
    if (this.#said) return this.#refuse()
    if (this.#length !== undefined && this.#taken !== this.#length) {
      const what = `${this.#question.name} sent ${this.#taken} of ${this.#length} bytes`
      return this.#fail(new Failure('upstream-error', what, { source: 'upstream' }))
    }
    this.#end()
    const isWhole = this.#taken === this.#body.byteLength
    const bytes = isWhole ? this.#body : Buffer.from(Uint8Array.prototype.slice.call(this.#body, 0, this.#taken).buffer)
    this.#answer.came(bytes, this.#length)
  }

  onResponseError(_controller: unknown, error: Error): void {
    if (this.#isOver || this.#isMoving) return
    if (this.#said) return this.#refuse()
    const failure = translate(this.#question.name, error)
    if (this.#wasStale || !isStaleSocket(failure)) return this.#fail(failure)
    // A connection that the server closed says little about the upstream: try once more on a new
    // one.
    this.#wasStale = true
    this.#body = nothing
    this.#taken = 0
    this.#length = undefined
    this.#dispatchAgain()
  }

  /**
   * Dispatched later, because undici's client is still ending the request whose handler runs now.
   */
  #dispatchAgain(): void {
    queueMicrotask(() => {
      if (!this.#isOver) this.#dispatch()
    })
  }

  #follow(status: number, location: string | undefined): void {
    const { name, redirects = 'site', url } = this.#question
    const site = new URL(url)
    const target = followed(location, { site, from: new URL(this.#url), redirects })
    if (!target || this.#hops++ === mostHops[redirects]) return this.#fail(elsewhere(name, status, location, site))
    this.#isMoving = true
    this.#controller?.abort(enough)
    this.#isMoving = false
    this.#url = target.href
    this.#dispatchAgain()
  }

  #refuse(): void {
    if (!this.#said) return
    const { status, retryAfter } = this.#said
    const text = this.#body.toString('utf8', 0, Math.min(this.#taken, maxErrorBytes))
    this.#fail(refusal(this.#question.name, status, retryAfter, text, this.#question.clock.now()))
  }

  #fail(error: unknown): void {
    if (!this.#end()) return
    this.#controller?.abort(enough)
    this.#answer.failed(error)
  }

  #end(): boolean {
    if (this.#isOver) return false
    this.#isOver = true
    this.#stopTimer?.()
    return true
  }

  /** One timer for the first byte and for later silence: most responses end before it fires. */
  #wait(ms: number): void {
    const { name, clock, firstByteMs, idleMs } = this.#question
    this.#stopTimer?.()
    this.#dueAt = clock.monotonic() + ms
    this.#stopTimer = onceLate(clock, ms, () => {
      if (this.#movedAt === undefined) return this.#fail(late(name, 'begin to answer', firstByteMs))
      const left = this.#movedAt + idleMs - clock.monotonic()
      if (left > 0) this.#wait(left)
      else this.#fail(late(name, 'go on', idleMs))
    })
  }
}

const enough = new Failure('cancelled', 'the answer is not needed any more', { source: 'ours' })

export const tooLarge = (name: string, maxBytes: number): Failure =>
  new Failure('too-large', `${name} sent more than ${maxBytes} bytes`, { source: 'upstream' })
