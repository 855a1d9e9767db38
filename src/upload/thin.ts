// Thin mode: the gateway forwards uploads to another service as they arrive and computes their blocks. No copy, no journal.
// It believes the service only if the answer names the CIDs computed here. It sends the end of a part, and of the body, only
// after checking it: an upload that the gateway refuses is never whole at the service.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import { type Profile, shapes } from '../../backends/pinning/contract.ts'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure, isFailure, malformed } from '../core/failure.ts'
import type { OpenSpan, Trace } from '../core/wire/trace.ts'
import type { Retrieval } from '../retrieval/session.ts'
import { createUploadAdmission } from './admission.ts'
import { createForwarding, type Forward, type ForwardedKind, isKuboAddress, type Target } from './forward.ts'
import { createTree, importFile, maxEntries, putTree, type WrittenFolder } from './import.ts'
import type { Quotas } from './quotas.ts'
import { type PartName, type ReceiveLimits, type ReceiveOptions, receive } from './receive.ts'
import { nameOf } from './stored-upload.ts'
import { isFolder, keepText } from './taking.ts'
import { type Added, type AddOptions, type UploadCounter, type Uploads, uncounted } from './uploads.ts'

export type ThroughOptions = {
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

export type Through = Pick<Uploads, 'maxBytes' | 'kinds' | 'enter' | 'receive'> & { close(): Promise<void> }

const storeMs = 10_000

export function createThrough(options: ThroughOptions): Through {
  const { limits, retrieval, clock, answerMs, trace, counts = uncounted } = options
  const receiveWith = receiving(options)
  const forwarding = createForwarding(options)
  const closing = new AbortController()
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

  async function forwarded(request: IncomingMessage, own: AddOptions): Promise<Added[]> {
    const span = trace?.ask('provider pin')
    const kind: ForwardedKind = own.kind === 'directory' ? 'directory' : 'files'
    const begin = () => forwarding.begin(kind, own.via, own.name)
    const forward = span ? span.run(begin) : begin()
    const onClose = () => forward.abort(closing.signal.reason)
    closing.signal.addEventListener('abort', onClose, { once: true })
    try {
      const added = await receiveWith(request, own, forward)
      forward.end()
      const held = await withDeadline({ ms: answerMs, clock, late: forward.late }, () => forward.answer)
      for (const { cid } of added) {
        if (!held.has(nameOf(cid)))
          throw forwarding.failure('content', `it did not say that it holds ${cid}, which the upload is${doubt[kind]}`)
        retrieval.forget(cid)
      }
      await own.slot?.quota?.commit()
      endSpan(span, forwarding.host, added)
      return added
    } catch (error) {
      endSpan(span, forwarding.host, error)
      forward.abort(error)
      throw error
    } finally {
      closing.signal.removeEventListener('abort', onClose)
    }
  }

  return {
    maxBytes: limits.maxBytes,
    kinds: ['files', 'directory'],
    enter: admission.enter,
    async receive(request, own = {}) {
      closing.signal.throwIfAborted()
      // The service learns nothing of what is not to be kept.
      if (own.isOnlyHashed) return receiveWith(request, own, untold(closing.signal))
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

/** Makes blocks of what arrives, and hands its bytes on. */
type ReceiveWith = (request: IncomingMessage, own: AddOptions, destination: Destination) => Promise<Added[]>

function receiving(options: ThroughOptions): ReceiveWith {
  const { limits, retrieval, clock } = options

  async function keep(cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    const late = () => new Failure('timeout', 'the tiers did not take a block in time', { source: 'tier' })
    // A failing cache does not fail the upload: the service may still take it.
    const store = (own: AbortSignal) => retrieval.store(cid, Uint8Array.from(bytes), own)
    await withDeadline({ ms: storeMs, clock, signal, late }, store).catch(() => signal.throwIfAborted())
  }

  const shapeOf = (own: AddOptions) => own.shape ?? shapes[options.profile]

  /** A refusal cuts the body: the service has not got the end of this part. */
  const putWith = (signal: AbortSignal, own: AddOptions) => async (cid: CID, block: Uint8Array) => {
    options.admit?.(cid)
    if (!own.isOnlyHashed) await keep(cid, block, signal)
  }

  async function importPart(source: AsyncIterable<Uint8Array>, own: AddOptions, signal: AbortSignal): Promise<Added> {
    const text = own.check && keepText(own.check)
    const bytes = text ? text.over(source) : source
    const { cid, dagBytes } = await importFile(bytes, shapeOf(own), putWith(signal, own))
    text?.check()
    return { cid, dagBytes, fileName: undefined }
  }

  async function receiveFiles(receiving: Receiving): Promise<Added[]> {
    const { request, own, destination } = receiving
    return receive(
      request,
      receiving.options,
      inTurn((bytes, signal) => importPart(destination.part(bytes, signal), own, signal)),
    )
  }

  /** The files, and the directory that they make last, whose nodes are made here: the service makes its own of the names. */
  async function receiveFolder({ request, own, destination, options }: Receiving): Promise<Added[]> {
    const tree = createTree()
    const take = async (bytes: AsyncIterable<Uint8Array>, signal: AbortSignal, part: PartName) => {
      // The parser refuses a part without one.
      const path = part.path as string
      if (isFolder(part)) {
        tree.folder(path)
        for await (const _ of destination.part(bytes, signal, { path, isFolder: true }))
          throw malformed(`the directory ${JSON.stringify(path)} has content`)
        return undefined
      }
      const file = tree.file(path)
      const added = await importPart(destination.part(bytes, signal, { path, isFolder: false }), own, signal)
      file.entry = added
      return { ...added, fileName: path }
    }
    const files = await receive(request, { ...options, parts: 'paths', maxParts: maxEntries }, inTurn(take))
    const written = await putTree(tree.root, { ...shapeOf(own), put: putWith(destination.failed, own) })
    const { cid, dagBytes } = written.at(-1) as WrittenFolder
    return [...files.filter((one) => one !== undefined), { cid, dagBytes, fileName: '' }]
  }

  return (request, own, destination) => {
    const receiving = { ...limits, clock, signal: destination.failed, slot: own.slot }
    const take = own.kind === 'directory' ? receiveFolder : receiveFiles
    return take({ request, own, destination, options: receiving })
  }
}

/** State for its operator. */
const doubt: Readonly<Record<ForwardedKind, string>> = {
  files: '',
  directory: '; does it have the same profile, and take folders (wrap=true)?',
}

/** Where bytes go on to. */
type Destination = Pick<Forward, 'part' | 'failed'>

type Receiving = {
  readonly request: IncomingMessage
  readonly own: AddOptions
  readonly destination: Destination
  readonly options: ReceiveOptions
}

/** Goes to no service. */
const untold = (failed: AbortSignal): Destination => ({
  async *part(bytes) {
    yield* bytes
  },
  failed,
})

type Take<T> = (bytes: AsyncIterable<Uint8Array>, signal: AbortSignal, part: PartName) => Promise<T>

/** One after the other, so that a part ends at the service only when it was found in order. */
function inTurn<T>(take: Take<T>): Take<T> {
  let before: Promise<unknown> = Promise.resolve()
  return (...part) => {
    const taken = before.then(() => take(...part))
    before = taken
    return taken
  }
}

/** `became`: what the service holds now, or why it does not. */
function endSpan(span: OpenSpan | undefined, provider: string, became: unknown): void {
  if (!span) return
  const held = Array.isArray(became) ? (became as readonly Added[]) : undefined
  const failure = isFailure(became) ? became : undefined
  const facts = {
    'cidgate.provider': provider,
    'cidgate.outcome': held ? 'pinned' : (failure?.facts.class ?? failure?.kind ?? 'internal'),
    'cidgate.bytes': held?.reduce((sum, { dagBytes }) => sum + dagBytes, 0),
  }
  // A client that sends what may not be uploaded is no fault of the service.
  span.end(facts, !held && failure?.source !== 'client')
}

// Checks that thin mode's service answers. The probe sends nothing that the service would keep, so it cannot test our token.

/** Rejects with a Failure that tells the operator what to repair. */
export async function probeTarget({ url }: Pick<Target, 'url'>, userAgent: string, signal: AbortSignal): Promise<void> {
  const asked = new URL(url)
  const { host } = asked
  // Kubo's RPC answers nothing at its root, only its commands.
  if (isKuboAddress(asked)) asked.pathname = asked.pathname.replace(/(\/add)?\/?$/, '/version')
  const refused = (why: string, cause?: unknown) =>
    new Failure('unavailable', `${host} ${why}; look at it, and at upload.forwardTo`, { source: 'provider', cause })
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
