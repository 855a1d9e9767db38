// Thin mode: the gateway forwards uploads to another service as they arrive and computes their
// blocks, which go into the tiers when the service has accepted them. It believes the service only
// if the answer names the CIDs computed here. It sends the end of a part, and of the body, only
// after checking it: an upload that the gateway refuses is never complete at the service.
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { Agent as HttpAgent, type IncomingMessage, ServerResponse } from 'node:http'
import { Agent as HttpsAgent } from 'node:https'
import { addAbortSignal, PassThrough } from 'node:stream'
import { CID } from 'multiformats/cid'
import { addOptionsOfKubo, type Profile, shapes } from '../../backends/pinning/contract.ts'
import type { Block } from '../core/cid.ts'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure, type FailureKind, isFailure } from '../core/failure.ts'
import { loadProxyMiddleware } from '../core/packages.ts'
import { parseRetryAfter } from '../core/wire/http.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { Retrieval } from '../retrieval/retrieval.ts'
import type { FailureClass } from '../store/store.ts'
import { createUploadAdmission } from './admission.ts'
import { ingestDirectory, ingestFile, type PartInFolder } from './ingest.ts'
import type { Quotas } from './quotas.ts'
import { type ReceiveLimits, receive, type TakePart } from './receive.ts'
import { nameOf } from './stored-upload.ts'
import { type Added, type AddOptions, type UploadCounter, type Uploads, uncounted } from './uploads.ts'

export type Target = {
  /** `…/add` of a service like this one, or the RPC of a Kubo: `…/api/v0`. */
  readonly url: string
  /** The Authorization header that the gateway sends to the service. */
  readonly authorization?: string | undefined
}

export type ThinOptions = {
  readonly target: Target
  readonly profile: Profile
  readonly limits: ReceiveLimits
  readonly concurrency: number
  readonly perClient?: number | 'auto'
  /** Limits the time in which the service reads nothing while bytes wait for it, and how long its answer may take. */
  readonly answerMs: number
  readonly userAgent: string
  readonly retrieval: Pick<Retrieval, 'store' | 'forget'>
  readonly quotas?: Quotas | undefined
  readonly counts?: UploadCounter | undefined
  /** Throws a Failure for a CID that this gateway must not keep or serve (a denylist). */
  readonly admit?: (cid: CID) => void
  readonly clock: Clock
  readonly trace?: Trace
}

export type ThinUploads = Pick<Uploads, 'maxBytes' | 'kinds' | 'enter' | 'receive'> & { close(): Promise<void> }

type Kind = 'files' | 'directory'

/** An upload on its way to the service. */
type Forward = Pick<Onward, 'part' | 'end'> & {
  /** Aborts when the service cannot be reached, breaks off, or answers before it has the complete body. */
  readonly failed: AbortSignal
  /** The CIDs that the service says it holds. */
  readonly answer: Promise<ReadonlySet<string>>
  /** The Failure for an answer that does not come in time. */
  late(): Failure
  abort(reason: unknown): void
}

const storeMs = 10_000
const keptAtOnce = 16
/** Of all uploads under way. One that does not fit is read from the service. */
const maxHeldBytes = 64 * 1024 * 1024
/** Below the time after which the receiver reports that the upload got stuck in this gateway. */
const maxStuckMs = 50_000

const isKuboAddress = ({ pathname }: URL): boolean => /\/api\/v0(\/add)?\/?$/.test(pathname)

export function createThin(options: ThinOptions): ThinUploads {
  const { target, profile, limits, retrieval, clock, answerMs, userAgent, trace, counts = uncounted } = options
  const stuckMs = Math.min(answerMs, maxStuckMs)
  const url = new URL(target.url)
  const isKubo = isKuboAddress(url)
  const closing = new AbortController()
  let heldBytes = 0
  const admission = createUploadAdmission({
    clock,
    maxUploads: options.concurrency,
    maxPendingBytes: Number.POSITIVE_INFINITY,
    perClient: options.perClient ?? 'auto',
    minRate: limits.minRate,
    quotas: options.quotas,
    onRefused: counts.refused,
    closing: closing.signal,
  })

  const failure: TargetFailure = (kind, why, { as = 'upstream-error', ...more } = {}) =>
    new Failure(as, `${url.host} does not hold the upload: ${why}`, {
      source: 'provider',
      ...more,
      facts: { class: kind, service: url.host, outcomes: [{ provider: url.host, outcome: kind, detail: why }] },
    })

  // The middleware gets a request and a response of its own: the client is answered in our shape, and its headers and tokens
  // must not reach the service.
  const listeners = new WeakMap<object, { onAnswer(response: IncomingMessage): void; onError(error: unknown): void }>()
  const forward = loadProxyMiddleware().createProxyMiddleware({
    target: url.origin,
    changeOrigin: true,
    selfHandleResponse: true,
    // A new connection for each upload: a POST on a connection that the service just closed cannot be sent again.
    agent: new (url.protocol === 'https:' ? HttpsAgent : HttpAgent)({ keepAlive: false }),
    // No default plugins: they write answers and log lines of their own.
    ejectPlugins: true,
    plugins: [
      (proxy) => {
        proxy.on('proxyRes', (response, request) => listeners.get(request)?.onAnswer(response))
        proxy.on('error', (error, request) => void (request && listeners.get(request)?.onError(error)))
        proxy.on('econnreset', (error, request) => listeners.get(request)?.onError(error))
      },
    ],
  })

  /** The path and query of an upload of this kind. */
  function pathOf(kind: Kind, name: string | undefined): string {
    const path = new URL(url)
    if (isKubo) {
      path.pathname = path.pathname.replace(/(\/add)?\/?$/, '/add')
      const wanted = { ...addOptionsOfKubo(shapes[profile]), 'wrap-with-directory': String(kind === 'directory') }
      path.search = new URLSearchParams(wanted).toString()
    } else if (kind === 'directory') path.searchParams.set('wrap', 'true')
    if (name !== undefined) path.searchParams.set(isKubo ? 'pin-name' : 'name', name)
    return path.pathname + path.search
  }

  function begin(kind: Kind, { via, name }: AddOptions): Forward {
    const stop = new AbortController()
    const answer = Promise.withResolvers<ReadonlySet<string>>()
    answer.promise.catch(() => {})
    const stuck = () => failure('transient', `it accepted no data for ${stuckMs} ms`)
    const body = createOnward({ isKubo, stuckMs, clock, late: stuck })
    const traceparent = trace?.header()
    let hasBegun = false
    const fail = (error: unknown): void => {
      const reason = isFailure(error)
        ? error
        : failure('transient', 'it cannot be reached, or the connection was lost', { cause: error })
      answer.reject(reason)
      if (!stop.signal.aborted) stop.abort(reason)
    }
    const own = Object.assign(body.stream, {
      method: 'POST',
      url: pathOf(kind, name),
      httpVersion: '1.1',
      httpVersionMajor: 1,
      httpVersionMinor: 1,
      headers: {
        'content-type': body.contentType,
        // A service that refuses early and closes at once would lose its own answer.
        connection: 'keep-alive',
        'user-agent': userAgent,
        accept: 'application/json',
        ...(via !== undefined && { 'cdn-loop': via }),
        ...(traceparent !== undefined && { traceparent }),
        ...(target.authorization !== undefined && { authorization: target.authorization }),
      },
      socket: { writable: true },
    }) as unknown as IncomingMessage
    listeners.set(own, {
      onError: fail,
      onAnswer(response) {
        hasBegun = true
        // Kubo begins its answer after the first part: until all was sent, the time limits of the body apply to it.
        readAnswer(addAbortSignal(stop.signal, response), { isKubo, kind, failure, now: clock.now() }).then((held) => {
          if (body.hasEnded()) answer.resolve(held)
          else fail(failure('transient', 'it answered before it had the complete upload'))
        }, fail)
      },
    })
    body.stream.on('error', () => {})
    const response = new ServerResponse(own)
    forward(own, response, (error) => error !== undefined && fail(error)).catch(fail)
    return {
      part: body.part,
      end: body.end,
      failed: stop.signal,
      answer: answer.promise,
      late: () =>
        failure(
          'transient',
          hasBegun ? `its answer did not end within ${answerMs} ms` : `no answer within ${answerMs} ms`,
        ),
      abort(reason) {
        answer.reject(reason)
        if (!stop.signal.aborted) stop.abort(reason)
        body.stream.destroy()
        // Makes the proxy drop its connection: the service sees a request that was cut.
        response.emit('close')
      },
    }
  }

  /** Puts the blocks of an accepted upload into the tiers. They are caches: the service has it. */
  async function keep(blocks: readonly Block[]): Promise<void> {
    const late = () => new Failure('timeout', 'the tiers did not take the blocks in time', { source: 'tier' })
    const rest = blocks.toReversed()
    const work = async (signal: AbortSignal): Promise<void> => {
      for (let one = rest.pop(); one && !signal.aborted; one = rest.pop()) {
        // It may have been taken down meanwhile.
        options.admit?.(one.cid)
        await retrieval.store(one.cid, one.bytes, signal)
      }
    }
    const all = (signal: AbortSignal) => Promise.all(Array.from({ length: keptAtOnce }, () => work(signal)))
    await withDeadline({ ms: storeMs, clock, signal: closing.signal, late }, all).catch(() => {})
  }

  /** Holds the blocks of an upload until the service accepts it, while there is memory for them. */
  function createHold() {
    let blocks: Block[] = []
    let bytes = 0
    let isFull = false
    const drop = (): void => {
      heldBytes -= bytes
      bytes = 0
      blocks = []
    }
    return {
      drop,
      blocks: () => blocks,
      add(cid: CID, block: Uint8Array): void {
        isFull ||= heldBytes + block.byteLength > maxHeldBytes
        if (isFull) return drop()
        heldBytes += block.byteLength
        bytes += block.byteLength
        blocks.push({ cid, bytes: Uint8Array.from(block) })
      },
    }
  }

  /** Makes blocks of what arrives, and passes its bytes on. */
  async function receiveInto(
    request: IncomingMessage,
    own: AddOptions,
    { failed, part }: Pick<Forward, 'part' | 'failed'>,
    hold: (cid: CID, block: Uint8Array) => void = () => {},
  ): Promise<Added[]> {
    const receiving = { ...limits, clock, signal: failed, slot: own.slot, count: own.slot?.quota?.add }
    const into = {
      shape: own.shape ?? shapes[profile],
      check: own.check,
      // A refusal cuts the body: the service has not got the end of this part.
      async put(cid: CID, block: Uint8Array) {
        options.admit?.(cid)
        hold(cid, block)
      },
    }
    if (own.kind !== 'directory') {
      const take: TakePart<Added> = async (bytes, signal) => ({
        ...(await ingestFile(part(bytes, signal), into)),
        fileName: undefined,
      })
      return receive(request, receiving, inTurn(take))
    }
    // The nodes of the directory are made here: the service makes its own of the names.
    const { files, root } = await ingestDirectory(
      (more, take) => receive(request, { ...receiving, ...more }, inTurn(take)),
      {},
      { ...into, pass: part },
    )
    return [...files, { ...root, fileName: '' }]
  }

  async function forwarded(request: IncomingMessage, own: AddOptions): Promise<Added[]> {
    const span = trace?.ask('provider pin')
    const kind = own.kind === 'directory' ? 'directory' : 'files'
    const start = () => begin(kind, own)
    const forward = span ? span.run(start) : start()
    const onClose = () => forward.abort(closing.signal.reason)
    const endSpan = (outcome: string, hasFailed: boolean, bytes?: number): void =>
      span?.end({ 'cidgate.provider': url.host, 'cidgate.outcome': outcome, 'cidgate.bytes': bytes }, hasFailed)
    closing.signal.addEventListener('abort', onClose, { once: true })
    const hold = createHold()
    try {
      const added = await receiveInto(request, own, forward, hold.add)
      forward.end()
      const held = await withDeadline({ ms: answerMs, clock, late: forward.late }, () => forward.answer)
      for (const { cid } of added) {
        if (!held.has(nameOf(cid)))
          throw failure('content', `it did not say that it holds ${cid}, which the upload is${doubt[kind]}`)
        retrieval.forget(cid)
      }
      await own.slot?.quota?.commit()
      await keep(hold.blocks())
      const bytes = added.reduce((sum, { dagBytes }) => sum + dagBytes, 0)
      endSpan('pinned', false, bytes)
      return added
    } catch (error) {
      const { facts, kind, source } = isFailure(error) ? error : { facts: {}, kind: 'internal', source: 'ours' }
      // A client that sends what may not be uploaded is no fault of the service.
      endSpan(facts.class ?? kind, source !== 'client')
      forward.abort(error)
      throw error
    } finally {
      closing.signal.removeEventListener('abort', onClose)
      hold.drop()
    }
  }

  return {
    maxBytes: limits.maxBytes,
    kinds: ['files', 'directory'],
    enter: admission.enter,
    async receive(request, own = {}) {
      closing.signal.throwIfAborted()
      // The service learns nothing of what is not to be kept.
      if (own.isOnlyHashed) return receiveInto(request, own, { failed: closing.signal, part: (bytes) => bytes })
      return counts.over(
        () => forwarded(request, own),
        (added) => added,
      )
    },
    async close() {
      closing.abort(new Failure('cancelled', 'this gateway stops', { source: 'ours' }))
    },
  }
}

/** State for its operator. */
const doubt: Readonly<Record<Kind, string>> = {
  files: '',
  directory: '; does it have the same profile, and take folders (wrap=true)?',
}

/** One after the other, so that a part ends at the service only when it was found in order. */
function inTurn<T>(take: TakePart<T>): TakePart<T> {
  let before: Promise<unknown> = Promise.resolve()
  return (...part) => {
    const taken = before.then(() => take(...part))
    before = taken
    return taken
  }
}

// Checks that thin mode's service answers. The probe sends nothing that the service would keep, so it cannot test our token.

/** Rejects with a Failure that tells the operator what to repair. */
export async function probeTarget({ url }: Pick<Target, 'url'>, userAgent: string, signal: AbortSignal): Promise<void> {
  const asked = new URL(url)
  const { host } = asked
  // Kubo's RPC answers nothing at its root, only its commands.
  if (isKuboAddress(asked)) asked.pathname = asked.pathname.replace(/(\/add)?\/?$/, '/version')
  const refused = (why: string, cause?: unknown) =>
    new Failure('unavailable', `${host} ${why}; check it, and upload.forwardTo`, { source: 'provider', cause })
  let status: number
  try {
    const answer = await fetch(asked, {
      method: 'OPTIONS',
      redirect: 'manual',
      headers: { 'user-agent': userAgent },
      signal,
    })
    await answer.body?.cancel()
    status = answer.status
  } catch (error) {
    signal.throwIfAborted()
    const { code } = ((error as Error).cause ?? {}) as NodeJS.ErrnoException
    throw refused(`cannot be reached (${code ?? 'unknown reason'})`, error)
  }
  if (status >= 500 || status === 404) throw refused(`answers ${status}`)
}

// Reads the answer of thin mode's service: the CIDs that the service says it holds, or a Failure that says why it holds none.

type TargetFailure = (
  kind: FailureClass,
  why: string,
  more?: {
    readonly cause?: unknown
    readonly retryAfterMs?: number | undefined
    /** The kind of a refusal that the gateway hands on to the client. Otherwise the service is `broken`. */
    readonly as?: FailureKind | undefined
  },
) => Failure

/** Refusals that the client can act on. The service's own words stay here: they may repeat our token. */
const handedOn: Readonly<Record<number, { readonly as: FailureKind; readonly why: string }>> = {
  401: { as: 'refused', why: 'it wants a token, and does not take the one that this gateway sends' },
  413: { as: 'too-large', why: 'the upload is larger than it takes' },
  429: { as: 'throttled', why: 'it asks for fewer uploads' },
}

/** A line or a CID for each file. */
const maxAnswerBytes = { files: 1024 * 1024, directory: 16 * 1024 * 1024 } as const

async function readAnswer(
  response: IncomingMessage,
  {
    isKubo,
    kind,
    failure,
    now,
  }: {
    readonly isKubo: boolean
    readonly kind: Kind
    readonly failure: TargetFailure
    readonly now: number
  },
): Promise<ReadonlySet<string>> {
  const status = response.statusCode ?? 0
  // Fail at once: a service that refuses often stops reading, and then the connection breaks.
  if (status < 200 || status > 299) {
    const { as, why } = handedOn[status] ?? {}
    const retryAfterMs = parseRetryAfter(response.headers['retry-after'], now)
    throw failure(classOf(status), `it answered ${status}${why ? `: ${why}` : ''}`, { retryAfterMs, as })
  }
  const pieces: Buffer[] = []
  let bytes = 0
  for await (const piece of response as AsyncIterable<Buffer>) {
    bytes += piece.byteLength
    if (bytes > maxAnswerBytes[kind]) throw failure('content', 'its answer is longer than an answer can be')
    pieces.push(piece)
  }
  if (response.trailers['x-stream-error'] !== undefined) throw failure('transient', 'it failed behind its answer')
  try {
    const text = Buffer.concat(pieces).toString()
    const said = isKubo
      ? text
          .split('\n')
          .filter(Boolean)
          .map((line) => JSON.parse(line).Hash)
      : JSON.parse(text).cids
    return new Set((said as unknown[]).flatMap(named))
  } catch (error) {
    throw failure('content', 'its answer is not of the form that was expected', { cause: error })
  }
}

function named(said: unknown): string[] {
  const text = /^(?:\/ipfs\/|ipfs:\/\/|ipfs\/)?([0-9A-Za-z]+)/.exec(typeof said === 'string' ? said : '')?.[1]
  return text === undefined ? [] : [nameOf(CID.parse(text))]
}

function classOf(status: number): FailureClass {
  if (status === 401 || status === 403) return 'auth'
  if (status === 402) return 'quota'
  return [408, 425, 429].includes(status) || status >= 500 || status < 400 ? 'transient' : 'content'
}

// The body that thin mode sends on: the client's `data` parts and nothing else, with part headers and a boundary of ours.
// Another service may keep every part (Kubo does), or parse headers and the bytes around the parts differently.

type Onward = {
  readonly stream: PassThrough
  readonly contentType: string
  /** Yields the bytes once they were sent on. The part before this one must have ended. */
  part(bytes: AsyncIterable<Uint8Array>, signal: AbortSignal, as?: PartInFolder): AsyncIterable<Uint8Array>
  /** Sends the closing boundary: without it the service has no complete body. */
  end(): void
  hasEnded(): boolean
}

export function createOnward(options: {
  /** A Kubo reads a file name as a part of a URL. */
  readonly isKubo: boolean
  /** Time without a read by the service after which the upload fails. */
  readonly stuckMs: number
  readonly clock: Clock
  readonly late: () => Failure
}): Onward {
  const boundary = `cidgate-${randomUUID()}`
  const stream = new PassThrough()
  let parts = 0
  let hasEnded = false

  async function write(piece: Uint8Array | string, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (stream.write(piece)) return
    const drained = (own: AbortSignal) => once(stream, 'drain', { signal: own })
    await withDeadline({ ...options, ms: options.stuckMs, signal }, drained)
  }

  return {
    stream,
    contentType: `multipart/form-data; boundary=${boundary}`,
    async *part(bytes, signal, as) {
      const before = parts++ === 0 ? '' : '\r\n'
      // With a file name every parser takes the part for a file. The client's own name stays private, and each name is
      // different, because Kubo skips a part that seems to lie inside a file it has seen.
      const fileName = as ? written(as.path, options.isKubo) : `data-${parts}`
      const disposition = `Content-Disposition: form-data; name="data"; filename="${fileName}"`
      const type = as?.isFolder ? folderType : 'application/octet-stream'
      await write(`${before}--${boundary}\r\n${disposition}\r\nContent-Type: ${type}\r\n\r\n`, signal)
      for await (const piece of bytes) {
        await write(piece, signal)
        yield piece
      }
    },
    end() {
      hasEnded = true
      stream.end(`\r\n--${boundary}--\r\n`)
    },
    hasEnded: () => hasEnded,
  }
}

const folderType = 'application/x-directory'

/** It has no control characters and no backslashes. */
const written = (path: string, isKubo: boolean): string =>
  isKubo ? path.split('/').map(encodeURIComponent).join('/') : path.replaceAll('"', '\\"')
