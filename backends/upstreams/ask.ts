// HTTP requests to upstreams, routers and Kubo: timeouts for the first byte and for silence later,
// statuses as Failures, redirects within the site only, and a check of the media type. A request is
// the handler of its own response, of which a parser makes pieces (a whole block, the blocks of a
// CAR), without a promise: most blocks come in one or two chunks, and a stream, its iterator and its
// signals cost more than the block.
import type { CID } from 'multiformats/cid'
import type { Dispatcher } from 'undici'
import { isIdentity, parseCid, proves } from '../../src/core/cid.ts'
import { type Clock, onceLate } from '../../src/core/clock.ts'
import { Failure, type FailureKind, isFailure } from '../../src/core/failure.ts'
import { oneOf, parseRetryAfter } from '../../src/core/wire/http.ts'
import { type Answer, firstPiece, type UpstreamRequest } from './contract.ts'

export type HttpQuestion = {
  readonly name: string
  readonly url: string
  /** The block that the body is. */
  readonly cid?: CID | undefined
  readonly method?: 'GET' | 'POST' | 'PUT'
  readonly body?: Uint8Array
  /** Made by `asPlain`, once for each upstream. */
  readonly headers: Readonly<Record<string, string>>
  /** The required media type of the body; undefined means any except HTML. */
  readonly expects: string | undefined
  readonly agent: Dispatcher
  /** The allowed redirects. Default: within the host. */
  readonly redirects?: Redirects
  readonly clock: Clock
  readonly firstByteTimeout: number
  /** For silence in the middle of the body, while a reader waits. */
  readonly bodyTimeout: number
}

/** Adds a request for an uncompressed body. */
export const asPlain = (headers: Readonly<Record<string, string>>): Readonly<Record<string, string>> => ({
  ...headers,
  'accept-encoding': 'identity',
})

type Headers = Parameters<NonNullable<Dispatcher.DispatchHandler['onResponseStart']>>[2]

const maxErrorBytes = 4096
const enough = new Failure('cancelled', 'the answer is not needed any more', { source: 'ours' })

/** Makes pieces of the chunks of a body. */
export type BodyParser<Piece> = {
  /** The response is of the expected media type. Throws where it is refused. */
  begin?(headers: Headers): void
  push(chunk: Uint8Array): void
  next(): Piece | undefined
  /** Returns the last piece. Throws where the body may not end. */
  end(trailers: Headers): Piece | undefined
}

/**
 * One response, which may come after a redirect, or on a second socket where the first was stale.
 */
export class HttpRequest<Piece> implements Dispatcher.DispatchHandler, UpstreamRequest {
  readonly #question: HttpQuestion
  readonly #parser: BodyParser<Piece>
  readonly #answer: Answer<Piece>
  #controller: Dispatcher.DispatchController | undefined
  #isOver = false
  /** No reader wants bytes now, so silence is not the upstream's. */
  #isPaused = false
  #isDraining = false
  /** When its bytes moved last; undefined: it has not begun. */
  #movedAt: number | undefined
  #trailers: Headers | undefined
  #url: string
  #hops = 0
  #isMoving = false
  #wasStale = false
  /** The text of a refusal, as far as it is read. */
  #said: { readonly status: number; readonly retryAfter: string | undefined; text: string } | undefined
  #dueAt = 0
  #stopTimer: (() => void) | undefined

  constructor(question: HttpQuestion, parser: BodyParser<Piece>, answer: Answer<Piece>) {
    this.#question = question
    this.#url = question.url
    this.#parser = parser
    this.#answer = answer
    this.#dispatch()
  }

  /** Releases the socket. */
  stop(): void {
    if (this.#finish()) this.#controller?.abort(enough)
  }

  /** The socket is left alone from its next chunk on. */
  pause(): void {
    this.#isPaused = true
  }

  resume(): void {
    if (!this.#isPaused || this.#isOver) return
    this.#isPaused = false
    if (this.#movedAt !== undefined) this.#movedAt = this.#question.clock.monotonic()
    this.#drain()
    if (!this.#isPaused && !this.#isOver) this.#controller?.resume()
  }

  #dispatch(): void {
    const { agent, headers, firstByteTimeout, method = 'GET', body = null } = this.#question
    this.#controller = undefined
    this.#movedAt = undefined
    this.#wait(firstByteTimeout)
    const from = this.#url.indexOf('/', this.#url.indexOf('//') + 2)
    try {
      agent.dispatch({ origin: this.#url.slice(0, from), path: this.#url.slice(from), method, headers, body }, this)
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
    const { clock, bodyTimeout } = this.#question
    this.#movedAt = clock.monotonic()
    if (this.#movedAt + bodyTimeout < this.#dueAt) this.#wait(bodyTimeout)
    if (status !== 200 && !(this.#question.body && status < 300)) {
      this.#said = { status, retryAfter: oneOf(headers['retry-after']), text: '' }
      return
    }
    // The status says all where a body was sent.
    const wrong = this.#question.body === undefined ? unlikeAsked(this.#question, headers) : undefined
    if (wrong) return this.#fail(wrong)
    try {
      this.#parser.begin?.(headers)
    } catch (error) {
      this.#fail(error)
    }
  }

  onResponseData(_controller: unknown, chunk: Uint8Array): void {
    if (this.#isOver) return
    this.#movedAt = this.#question.clock.monotonic()
    if (this.#said) {
      this.#said.text += Buffer.from(chunk).toString('utf8')
      if (this.#said.text.length >= maxErrorBytes) this.#refuse()
      return
    }
    this.#drain(chunk)
    if (this.#isPaused && !this.#isOver) this.#controller?.pause()
  }

  onResponseEnd(_controller: unknown, trailers: Headers): void {
    if (this.#isOver) return
    if (this.#said) return this.#refuse()
    this.#trailers = trailers
    this.#drain()
  }

  onResponseError(_controller: unknown, error: Error): void {
    if (this.#isOver || this.#isMoving) return
    if (this.#said) return this.#refuse()
    const hasBegun = this.#movedAt !== undefined
    const isStale = !this.#wasStale && !hasBegun && this.#question.method !== 'POST' && isStaleSocket(error)
    if (!isStale) return this.#fail(translated(this.#question.name, error))
    // A connection that the server closed says little about the upstream: try once more on a new
    // one.
    this.#wasStale = true
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
    if (!target || this.#hops++ === maxHops[redirects]) return this.#fail(elsewhere(name, status, location, site))
    this.#isMoving = true
    this.#controller?.abort(enough)
    this.#isMoving = false
    this.#url = target.href
    this.#dispatchAgain()
  }

  #drain(chunk?: Uint8Array): void {
    const isNested = this.#isDraining
    this.#isDraining = true
    try {
      if (chunk) this.#parser.push(chunk)
      while (!isNested && !this.#isPaused && !this.#isOver) {
        const piece = this.#parser.next()
        if (piece !== undefined) this.#answer.came(piece)
        else if (this.#trailers) this.#end(this.#trailers)
        else break
      }
    } catch (error) {
      this.#fail(error)
    }
    this.#isDraining = isNested
  }

  #end(trailers: Headers): void {
    const last = this.#parser.end(trailers)
    if (last !== undefined) this.#answer.came(last)
    if (this.#finish()) this.#answer.ended()
  }

  #refuse(): void {
    if (!this.#said) return
    const { status, retryAfter, text } = this.#said
    const { name, clock } = this.#question
    this.#fail(refusal(name, status, parseRetryAfter(retryAfter, clock.now()), text.slice(0, maxErrorBytes)))
  }

  #fail(error: unknown): void {
    if (!this.#finish()) return
    this.#controller?.abort(enough)
    this.#answer.failed(error)
  }

  /** False: it was over already. */
  #finish(): boolean {
    if (this.#isOver) return false
    this.#isOver = true
    this.#stopTimer?.()
    return true
  }

  /** A single timer for the first byte and for later silence: it seldom fires. */
  #wait(ms: number): void {
    const { name, clock, firstByteTimeout, bodyTimeout } = this.#question
    const late = (what: string, limitMs: number) =>
      this.#fail(upstreamFailure('timeout', `${name} timed out: it did not ${what} within ${limitMs} ms`))
    this.#stopTimer?.()
    this.#dueAt = clock.monotonic() + ms
    this.#stopTimer = onceLate(clock, ms, () => {
      if (this.#movedAt === undefined) return late('begin to answer', firstByteTimeout)
      const left = this.#isPaused ? bodyTimeout : this.#movedAt + bodyTimeout - clock.monotonic()
      if (left > 0) this.#wait(left)
      else late('go on', bodyTimeout)
    })
  }
}

export type Whole = { readonly bytes: Uint8Array; readonly trailers: Headers }

const nothing = Buffer.alloc(0)

/** One piece: the whole body. */
class WholeBody implements BodyParser<Whole> {
  readonly #question: HttpQuestion
  readonly #maxBytes: number
  #body: Buffer = nothing
  #filled = 0
  #length: number | undefined

  constructor(question: HttpQuestion, maxBytes: number) {
    this.#question = question
    this.#maxBytes = maxBytes
  }

  begin(headers: Headers): void {
    const length = oneOf(headers['content-length'])
    if (length === undefined) return
    this.#length = Number(length)
    this.#checkSize(this.#length)
    // A memory of its own, of just this size: what keeps the block keeps nothing else alive.
    this.#body = Buffer.allocUnsafeSlow(this.#length)
  }

  push(chunk: Uint8Array): void {
    const filled = this.#filled + chunk.byteLength
    this.#checkSize(filled)
    if (filled > this.#body.byteLength) {
      const larger = Buffer.allocUnsafeSlow(Math.max(filled, this.#body.byteLength * 2))
      this.#body.copy(larger, 0, 0, this.#filled)
      this.#body = larger
    }
    this.#body.set(chunk, this.#filled)
    this.#filled = filled
  }

  next(): undefined {}

  end(trailers: Headers): Whole {
    const { name, cid } = this.#question
    const [length, filled] = [this.#length, this.#filled]
    if (length !== undefined && filled !== length)
      throw upstreamFailure('upstream-error', `${name} sent ${filled} of ${length} bytes`)
    const isFull = filled === this.#body.byteLength
    const bytes = isFull ? this.#body : Buffer.from(Uint8Array.prototype.slice.call(this.#body, 0, filled).buffer)
    // Without a Content-Length a part may look whole: then wrong bytes are no hash mismatch.
    if (length === undefined && cid && !isIdentity(cid) && !proves(cid, bytes))
      throw upstreamFailure('upstream-error', `${name} sent ${filled} bytes that are not ${cid}, or not all of it`)
    return { bytes, trailers }
  }

  #checkSize(bytes: number): void {
    if (bytes > this.#maxBytes)
      throw upstreamFailure('too-large', `${this.#question.name} sent more than ${this.#maxBytes} bytes`)
  }
}

export const wholeRequest = (question: HttpQuestion, maxBytes: number, answer: Answer<Whole>): HttpRequest<Whole> =>
  new HttpRequest(question, new WholeBody(question, maxBytes), answer)

export const wholeOf = async (question: HttpQuestion, maxBytes: number, signal: AbortSignal): Promise<Whole> =>
  (await firstPiece<Whole>((answer) => wholeRequest(question, maxBytes, answer), signal)) as Whole

// Failures.

/** The upstream may have the content in another format. */
const refusesFormat = { refuses: 'format' } as const

const upstreamFailure = (kind: FailureKind, message: string, cause?: unknown): Failure =>
  new Failure(kind, message, { source: 'upstream', cause })

/** Detects by the headers that a response does not match the request. */
function unlikeAsked({ name, expects }: HttpQuestion, headers: Headers): Failure | undefined {
  const encoding = oneOf(headers['content-encoding'])
  if (encoding && encoding !== 'identity') {
    const what = `${name} sent a body with Content-Encoding ${encoding}, which is not supported`
    return upstreamFailure('upstream-error', what)
  }
  const said = oneOf(headers['content-type'])
  if (said !== undefined && said === expects) return undefined
  const type = said?.split(';')[0]?.trim().toLowerCase()
  if (expects === undefined ? type !== 'text/html' : type === expects) return undefined
  const what = `${name} answered with Content-Type ${type ?? 'none'}, expected ${expects ?? 'a file'}`
  return new Failure('upstream-error', what, { source: 'upstream', facts: refusesFormat })
}

// Errors of this process or machine, which say nothing about the upstream.
const ourShortage: ReadonlySet<string> = new Set(['EMFILE', 'ENFILE', 'EADDRNOTAVAIL', 'ENOBUFS'])

/** The error of undici as a Failure. */
function translated(name: string, error: Error): Failure {
  if (isFailure(error)) return error
  const code = codeOf(error)
  if (code !== undefined && ourShortage.has(code)) {
    const what = `this gateway has no socket left to ask ${name} (${code}): raise its limit of open files (ulimit -n)`
    return new Failure('overloaded', what, { source: 'ours', cause: error, retryAfterMs: 1000 })
  }
  if (code === 'UND_ERR_CONNECT_TIMEOUT') return upstreamFailure('timeout', `${name}: connection timed out`, error)
  if (isFailure(error.cause)) return error.cause
  return upstreamFailure('upstream-error', `${name}: connection failed (${code ?? 'no reason given'})`, error)
}

const codeOf = (error: Error): string | undefined => {
  const { code } = error as { code?: unknown }
  return typeof code === 'string' ? code : undefined
}

/** undici counts per socket: a reused one has read an earlier response. */
const isStaleSocket = (error: Error): boolean =>
  (codeOf(error) === 'UND_ERR_SOCKET' || codeOf(error) === 'ECONNRESET') &&
  ((error as { socket?: { bytesRead?: number } }).socket?.bytesRead ?? 0) > 0

/** Statuses of gateways that do not support a format. */
const noFormat: ReadonlySet<number> = new Set([400, 405, 406, 415, 422, 501])

function refusal(name: string, status: number, retryAfterMs: number | undefined, said: string): Failure {
  const isThrottled = status === 429 || (status === 503 && retryAfterMs !== undefined)
  if (isThrottled)
    return new Failure('throttled', `rate limited by ${name} (${status})`, { source: 'upstream', retryAfterMs })
  // 412: the reply to only-if-cached, with which a gateway named by a router is asked. And some
  // gateways send 500 for a 404, with one of a few known messages.
  const isMissing = status === 500 && /(block|ipld|path).{0,40}not found|no link named/i.test(said)
  if (status === 404 || status === 412 || isMissing) return upstreamFailure('not-found', `${name} does not have it`)
  if (noFormat.has(status))
    return new Failure('refused', `${name} refused (${status})`, { source: 'upstream', facts: refusesFormat })
  if (status === 401 || status === 403 || status === 410 || status === 451)
    return upstreamFailure('refused', `${name} refused (${status})`)
  if (status === 504) return upstreamFailure('timeout', `${name} answered with 504 (gateway timeout)`)
  // 502, 503 and the codes of proxies: a proxy in front could not reach the upstream.
  const unreachable = status === 502 || status === 503 || status >= 520
  const facts = { isIll: status >= 500, ...(unreachable && { unreachable }) }
  return new Failure('upstream-error', `${name} answered with ${status}`, { source: 'upstream', facts })
}

// Redirects are followed to the same host, and, if the operator allows it, to the subdomain of that
// host which the path gateway specification defines for the same content.

const redirections: ReadonlySet<number> = new Set([301, 302, 303, 307, 308])

/** `none`: for a gateway that a router named. */
export type Redirects = 'site' | 'subdomains' | 'none'

/** From http to https, and from a path to a subdomain. */
const maxHops: Readonly<Record<Redirects, number>> = { none: 0, site: 1, subdomains: 2 }

/** `site`: the requested URL at the operator's host. `from`: the URL of the response. */
export function followed(
  location: string | undefined,
  { site, from, redirects }: { readonly site: URL; readonly from: URL; readonly redirects: Redirects },
): URL | undefined {
  if (redirects === 'none' || location === undefined || !URL.canParse(location, from.href)) return undefined
  const to = new URL(location, from)
  const isSafe = to.protocol === from.protocol || to.protocol === 'https:'
  // Another port is another service, which may belong to another party or be internal.
  if (!isSafe || to.port !== from.port || to.username !== '' || to.password !== '') return undefined
  const isSameHost = bare(to.hostname) === bare(from.hostname)
  return isSameHost || (redirects === 'subdomains' && isOwnSubdomain(to, site)) ? to : undefined
}

/**
 * Accepts `<cid>.ipfs.<host>` for `<host>/ipfs/<cid>`, and the same for keys. Any other subdomain
 * may belong to another party.
 */
function isOwnSubdomain(to: URL, site: URL): boolean {
  const [, space = '', name = ''] = /.*\/(ipfs|ipns)\/([^/]+)/.exec(site.pathname) ?? []
  const [label = '', ...rest] = to.hostname.split('.')
  if (rest.join('.') !== `${space}.${bare(site.hostname)}`) return false
  const [asked, answered] = [parseCid(decodeURIComponent(name)), parseCid(label)]
  if (asked === undefined || answered === undefined) return false
  return Buffer.compare(asked.multihash.bytes, answered.multihash.bytes) === 0
}

const bare = (host: string): string => host.replace(/^www\./, '')

function elsewhere(name: string, status: number, location: string | undefined, site: URL): Failure {
  const isOwn =
    location !== undefined && URL.canParse(location, site.href) && isOwnSubdomain(new URL(location, site), site)
  const what = isOwn
    ? `redirects to a subdomain of its own (${status}); set \`redirects: subdomains\` if that is meant`
    : `redirects to another host (${status}); set url to that host if it is meant`
  return upstreamFailure('upstream-error', `${name} ${what}`)
}
