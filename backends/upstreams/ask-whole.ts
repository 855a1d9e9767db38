// One question to an upstream whose answer is wanted whole: a block. The same rules as in ask.ts, without a stream: most blocks
// come in one or two pieces, and a stream, its iterator and its signals cost more than the block.
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

export type WholeAnswer = { readonly bytes: Uint8Array; readonly contentLength: number | undefined }

export type WholeQuestion = Omit<HttpQuestion, 'url' | 'method'> & {
  readonly url: string
  readonly mostBytes: number
  /** Of `asPlain`: made once for each upstream, and not for each question. */
  readonly headers: Readonly<Record<string, string>>
}

/** With the wish that the body comes as it is. */
export const asPlain = (headers: Readonly<Record<string, string>>): Readonly<Record<string, string>> => ({
  ...headers,
  'accept-encoding': 'identity',
})

const maxErrorBytes = 4096
const nothing = Buffer.alloc(0)

/** Rejects with a Failure, or with the reason of the signal. */
export async function askWhole(question: WholeQuestion): Promise<WholeAnswer> {
  try {
    return await follow(question)
  } catch (error) {
    if (!isStaleSocket(error)) throw error
    return await follow(question)
  }
}

async function follow(question: WholeQuestion): Promise<WholeAnswer> {
  const { name, redirects = 'site' } = question
  let { url } = question
  for (let hops = 0; ; hops++) {
    const answer = await askOnce(question, url)
    if (!('location' in answer)) return answer
    const { location, status } = answer
    const site = new URL(question.url)
    const target = followed(location, { site, from: new URL(url), redirects })
    if (!target || hops === mostHops[redirects]) throw elsewhere(name, status, location, site)
    url = target.href
  }
}

type RedirectAnswer = { readonly location: string | undefined; readonly status: number }

function askOnce(question: WholeQuestion, url: string): Promise<WholeAnswer | RedirectAnswer> {
  const { signal, agent, headers } = question
  signal.throwIfAborted()
  return new Promise((resolve, reject) => {
    const collector = createCollector(question, resolve, reject)
    const from = url.indexOf('/', url.indexOf('//') + 2)
    try {
      agent.dispatch(
        {
          origin: url.slice(0, from),
          path: url.slice(from),
          method: 'GET',
          headers,
        },
        collector,
      )
    } catch (error) {
      collector.onResponseError(undefined, error as Error)
    }
  })
}

type Headers = Parameters<NonNullable<Dispatcher.DispatchHandler['onResponseStart']>>[2]

function createCollector(
  question: WholeQuestion,
  resolve: (answer: WholeAnswer | RedirectAnswer) => void,
  reject: (error: unknown) => void,
) {
  const { name, signal, clock, mostBytes } = question
  let controller: Dispatcher.DispatchController | undefined
  let isOver = false
  let body: Buffer = nothing
  let taken = 0
  let length: number | undefined
  let said: { readonly status: number; readonly retryAfter: string | undefined } | undefined
  const silence = watchSilence(question, fail)
  const leave = () => fail(signal.reason)
  signal.addEventListener('abort', leave, { once: true })

  function end(): boolean {
    if (isOver) return false
    isOver = true
    silence.stop()
    signal.removeEventListener('abort', leave)
    return true
  }

  /** Lets go of the socket; the rest of the body is not read. */
  function fail(error: unknown): void {
    if (!end()) return
    controller?.abort(enough)
    reject(translate(name, error, undefined, signal))
  }

  /** What it says with a refusal, as far as it is read. */
  function refuse(): void {
    if (said)
      fail(
        refusal(
          name,
          said.status,
          said.retryAfter,
          body.toString('utf8', 0, Math.min(taken, maxErrorBytes)),
          clock.now(),
        ),
      )
  }

  function add(chunk: Uint8Array): void {
    if (taken + chunk.byteLength > body.byteLength) {
      const larger = Buffer.allocUnsafeSlow(Math.max(taken + chunk.byteLength, body.byteLength * 2))
      body.copy(larger, 0, 0, taken)
      body = larger
    }
    body.set(chunk, taken)
    taken += chunk.byteLength
  }

  return {
    onRequestStart(own: Dispatcher.DispatchController) {
      controller = own
      if (isOver) own.abort(enough)
    },
    onResponseStart(_own: unknown, status: number, headers: Headers) {
      if (isOver || status < 200) return
      if (redirections.has(status)) {
        if (end()) resolve({ status, location: oneOf(headers['location']) })
        return controller?.abort(enough)
      }
      silence.begun()
      if (status !== 200) {
        said = { status, retryAfter: oneOf(headers['retry-after']) }
        return
      }
      const wrong = unlikeAsked(question, headers)
      if (wrong) return fail(wrong)
      const told = oneOf(headers['content-length'])
      length = told === undefined ? undefined : Number(told)
      if (length === undefined) return
      if (length > mostBytes) fail(tooLarge(name, mostBytes))
      // A memory of its own, of just this size: what keeps the block keeps nothing else alive.
      else body = Buffer.allocUnsafeSlow(length)
    },
    onResponseData(_own: unknown, chunk: Uint8Array) {
      if (isOver) return
      silence.moved()
      if (!said && taken + chunk.byteLength > mostBytes) return fail(tooLarge(name, mostBytes))
      add(chunk)
      if (said && taken >= maxErrorBytes) refuse()
    },
    onResponseEnd() {
      if (isOver) return
      if (said) return refuse()
      if (length !== undefined && taken !== length) {
        const what = `${name} sent ${taken} of ${length} bytes`
        return fail(new Failure('broken', what, { source: 'upstream' }))
      }
      if (!end()) return
      const whole =
        taken === body.byteLength ? body : Buffer.from(Uint8Array.prototype.slice.call(body, 0, taken).buffer)
      resolve({ bytes: whole, contentLength: length })
    },
    onResponseError(_own: unknown, error: Error) {
      if (said && !isOver) return refuse()
      fail(error)
    },
  }
}

/** One timer for the first byte and for silence behind it: most answers end before it rings. */
function watchSilence({ name, clock, firstByteMs, idleMs }: WholeQuestion, fail: (error: Failure) => void) {
  /** When its bytes moved last; undefined: it has not begun. */
  let movedAt: number | undefined
  let dueAt = 0
  let stop = () => {}

  function wait(ms: number): void {
    dueAt = clock.monotonic() + ms
    stop = onceLate(clock, ms, () => {
      if (movedAt === undefined) return fail(late(name, 'begin to answer', firstByteMs))
      const left = movedAt + idleMs - clock.monotonic()
      if (left > 0) wait(left)
      else fail(late(name, 'go on', idleMs))
    })
  }

  wait(firstByteMs)
  return {
    stop: () => stop(),
    begun() {
      movedAt = clock.monotonic()
      if (movedAt + idleMs >= dueAt) return
      stop()
      wait(idleMs)
    },
    moved() {
      movedAt = clock.monotonic()
    },
  }
}

const enough = new Failure('cancelled', 'the answer is not needed any more', { source: 'ours' })

export const tooLarge = (name: string, mostBytes: number): Failure =>
  new Failure('too-large', `${name} sent more than ${mostBytes} bytes`, { source: 'upstream' })
