// Limits how many uploads are received at once, per client too, and how many of their bytes may be pending. One
// client never gets all slots: the more it has, the more must be free for another one. An upload without a slot waits for
// a moment; the more uploads wait, the faster a running one has to arrive to keep its slot.
import type { Clock } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'
import type { Quotas, QuotaUse, Uploader } from './quotas.ts'

export interface UploadAdmission {
  /**
   * Admits an upload of this client. Rejects with a Failure when no slot is free soon, or the quota has too little left for
   * `minBytes`, which it will bring at any rate.
   */
  enter(who: Uploader, signal?: AbortSignal, minBytes?: number): Promise<UploadSlot>
  /** Counts the bytes of an upload; without a slot, of the program itself. */
  count(slot?: UploadSlot): Counter
  readonly uploads: number
  readonly waiting: number
  readonly bytes: number
}

export interface UploadSlot {
  readonly client: string
  readonly rate: UploadRate
  /** Aborts with a Failure when others need the slot more. */
  readonly signal: AbortSignal
  /** The quota of its token; undefined: none. */
  readonly quota?: QuotaUse | undefined
  leave(): void
}

interface Counter {
  /** Throws a Failure above `maxPendingBytes`. */
  add(bytes: number): void
  release(): void
}

export type UploadAdmissionOptions = {
  readonly clock: Clock
  readonly maxUploads: number
  readonly maxPendingBytes: number
  /** Uploads of one client at once. `auto`: three times as many as slots are free. */
  readonly perClient: number | 'auto'
  /** Bytes a second below which an upload is always too slow; eight times that for each upload that waits. */
  readonly minRate: number
  /** Undefined: no token has one. */
  readonly quotas?: Quotas | undefined
  /** Called with the Failure of an upload that is not admitted. */
  readonly onRefused?: ((error: unknown) => void) | undefined
  /** Ends the queue. */
  readonly closing: AbortSignal
}

type Client = { slots: number; waiting: number; bytes: number }
type AdmittedUpload = UploadSlot & { readonly stop: AbortController }
type WaitingUpload = { readonly client: string; readonly enter: () => void; readonly fail: (reason: unknown) => void }

const maxWaitMs = 5000
const checkMs = 500
/** An upload is not judged by its speed before this. */
const graceMs = 2000
const rateForEach = 8
const share = 3
const minLine = 16

export function createUploadAdmission(options: UploadAdmissionOptions): UploadAdmission {
  const { clock, maxUploads, maxPendingBytes, perClient, minRate, quotas, onRefused, closing } = options
  const clients = new Map<string, Client>()
  const admitted = new Set<AdmittedUpload>()
  const line = new Set<WaitingUpload>()
  let cancelCheck: (() => void) | undefined
  let bytes = 0

  // One listener for all: a removed one still links to the next, and keeps that upload until V8 marks the whole heap.
  closing.addEventListener('abort', () => {
    for (const { stop } of admitted) stop.abort(closing.reason)
    for (const { fail } of [...line]) fail(closing.reason)
  })

  const has = (client: string, what: keyof Client): number => clients.get(client)?.[what] ?? 0

  function change(name: string, what: keyof Client, by: number): void {
    const client = clients.get(name) ?? { slots: 0, waiting: 0, bytes: 0 }
    client[what] += by
    if (client.slots + client.waiting + client.bytes === 0) clients.delete(name)
    else clients.set(name, client)
  }

  function fits(client: string): boolean {
    const free = maxUploads - admitted.size
    const slots = has(client, 'slots')
    return perClient === 'auto' ? mayHave(slots, free) : free > 0 && slots < perClient
  }

  function take(client: string): UploadSlot {
    const stop = new AbortController()
    const slot: AdmittedUpload = {
      ...{ client, stop, rate: createUploadRate(clock), signal: stop.signal },
      leave() {
        if (!admitted.delete(slot)) return
        change(client, 'slots', -1)
        letIn()
      },
    }
    admitted.add(slot)
    change(client, 'slots', 1)
    return slot
  }

  /** The upload whose client has the fewest slots goes first, then the one that waits longest. */
  function letIn(): void {
    if (line.size === 0) return
    const order = [...line].sort((one, other) => has(one.client, 'slots') - has(other.client, 'slots'))
    for (const waiter of order) if (fits(waiter.client)) return waiter.enter()
  }

  /**
   * Ends slow uploads for waiting ones, one for each, less those that are already ending: first the one that brings the least
   * per slot of its client.
   */
  function endSlow(): void {
    const minBytesPerSecond = minRate * rateForEach * line.size
    const isFull = admitted.size >= maxUploads
    const leaving = [...admitted].filter(({ signal }) => signal.aborted).length
    const slow = [...admitted]
      .filter(({ rate, signal }) => !signal.aborted && rate.isSenders && rate.ms >= graceMs)
      .filter(({ rate }) => rate.bytesPerSecond < minBytesPerSecond)
      .map((slot) => ({ slot, worth: slot.rate.bytesPerSecond / has(slot.client, 'slots') }))
      .sort((one, other) => one.worth - other.worth)
    for (const { client } of [...line].slice(leaving)) {
      // If only its own client's uploads block it, one of those is ended.
      const index = slow.findIndex(({ slot }) => isFull || slot.client === client)
      if (index !== -1) slow.splice(index, 1)[0]?.slot.stop.abort(tooSlow(line.size, minBytesPerSecond))
    }
  }

  function check(): void {
    cancelCheck = undefined
    if (line.size === 0) return
    endSlow()
    cancelCheck ??= clock.after(checkMs, check)
  }

  function waitFor(client: string, signal: AbortSignal | undefined): Promise<UploadSlot> {
    const { promise, resolve, reject } = Promise.withResolvers<UploadSlot>()
    const waiter: WaitingUpload = {
      client,
      enter() {
        end()
        resolve(take(client))
        letIn()
      },
      fail(reason) {
        end()
        reject(reason)
      },
    }
    const end = () => {
      line.delete(waiter)
      change(client, 'waiting', -1)
      cancel()
      signal?.removeEventListener('abort', onLeft)
      if (line.size === 0) cancelCheck = void cancelCheck?.()
    }
    const onLeft = () => waiter.fail(signal?.reason)
    const cancel = clock.after(maxWaitMs, () => waiter.fail(full(maxUploads)))
    line.add(waiter)
    change(client, 'waiting', 1)
    signal?.addEventListener('abort', onLeft, { once: true })
    if (cancelCheck) endSlow()
    else check()
    return promise
  }

  async function enter(client: string, signal: AbortSignal | undefined): Promise<UploadSlot> {
    closing.throwIfAborted()
    signal?.throwIfAborted()
    if (fits(client) && (line.size === 0 || has(client, 'slots') === 0)) return take(client)
    if (!mayHave(has(client, 'waiting'), Math.max(minLine, maxUploads) - line.size)) throw full(maxUploads)
    return waitFor(client, signal)
  }

  return {
    async enter(who, signal, minBytes) {
      const { client, quota } = typeof who === 'string' ? { client: who, quota: undefined } : who
      let use: QuotaUse | undefined
      try {
        if (quota && quotas) {
          await quotas.ready
          use = quotas.begin(quota, minBytes)
        }
        const slot = await enter(client, signal)
        const leave = () => {
          slot.leave()
          use?.end()
        }
        return use ? { ...slot, quota: use, leave } : slot
      } catch (error) {
        use?.end()
        onRefused?.(error)
        throw error
      }
    },
    count(slot) {
      let own = 0
      return {
        add(more) {
          own += more
          bytes += more
          if (slot) change(slot.client, 'bytes', more)
          const free = maxPendingBytes - bytes
          const all = slot ? has(slot.client, 'bytes') : own
          // A single upload may need all of it, so a client's first upload is not limited by its share.
          if (free < 0 || (all > own && !mayHave(all, free)))
            throw busy('the uploads in progress use all of upload.maxPendingBytes; retry in 5 seconds', 5000)
        },
        release() {
          bytes -= own
          if (slot && own > 0) change(slot.client, 'bytes', -own)
          own = 0
        },
      }
    },
    get uploads() {
      return admitted.size
    },
    get waiting() {
      return line.size
    },
    get bytes() {
      return bytes
    },
  }
}

const mayHave = (has: number, free: number): boolean => free > 0 && (has === 0 || has < share * free)

export const busy = (message: string, retryAfterMs = 1000): Failure =>
  new Failure('overloaded', message, { source: 'ours', retryAfterMs })

const full = (maxUploads: number): Failure => busy(`too many uploads in progress (${maxUploads}); retry in a second`)

const tooSlow = (waiting: number, rate: number): Failure =>
  new Failure(
    'upload-too-slow',
    `upload too slow: less than ${rate} bytes a second while ${waiting} wait for a slot; send it again over a faster connection`,
    {
      source: 'client',
      retryAfterMs: 5000,
    },
  )

interface UploadRate {
  received(bytes: number): void
  /** True while the client can send: not while the gateway applies backpressure, and not once all of it has arrived. */
  turn(isSenders: boolean): void
  readonly isSenders: boolean
  /** Milliseconds in which the client could send. */
  readonly ms: number
  readonly bytesPerSecond: number
}

const windowMs = 2000

export function createUploadRate(clock: Clock): UploadRate {
  let spent = 0
  let since: number | undefined
  let window = { at: 0, bytes: 0 }
  let before = { ms: 0, bytes: 0 }

  const ms = (): number => spent + (since === undefined ? 0 : clock.monotonic() - since)

  return {
    received(bytes) {
      const now = ms()
      if (now - window.at >= windowMs) {
        before = { ms: now - window.at, bytes: window.bytes }
        window = { at: now, bytes: 0 }
      }
      window.bytes += bytes
    },
    turn(isSenders) {
      spent = ms()
      since = isSenders ? clock.monotonic() : undefined
    },
    get isSenders() {
      return since !== undefined
    },
    get ms() {
      return ms()
    },
    get bytesPerSecond() {
      const lasted = before.ms + ms() - window.at
      return lasted > 0 ? ((before.bytes + window.bytes) * 1000) / lasted : 0
    },
  }
}
