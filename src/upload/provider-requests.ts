// Questions to providers: to pin, a few at once for each of them, with the class of the answer; and about a pin. A provider that
// names another CID than ours has failed.
import type { CID } from 'multiformats/cid'
import type { Provider, Upload } from '../../backends/pinning/contract.ts'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure, isFailure } from '../core/failure.ts'
import { createSemaphore, type Semaphore } from '../core/semaphore.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { FailureClass, Standing } from '../store/store.ts'
import { nameOf } from './stored-upload.ts'

type AsksOptions = {
  readonly clock: Clock
  /** Deadline of one attempt at one provider; larger uploads get more. */
  readonly pinMs: number
  /** Throws a Failure for a CID that this gateway must not keep now: an upload on its way may be denied later. */
  readonly admit: (cid: CID) => void
  /** Called with each answer of a provider. */
  readonly onAttempt?: ((attempt: ProviderAttempt) => void) | undefined
  readonly trace?: Trace | undefined
}

export interface Asks {
  /** Makes one attempt. Rejects only when `signal` aborts. */
  ask(provider: Provider, upload: Upload, signal: AbortSignal): Promise<ProviderAttempt>
}

export const asksAtOnce = 16

/** The queue needs no bound of its own: uploads that wait here are bounded by their admission, the others lie in the ledger. */
const gateOf = (name: string): Semaphore =>
  createSemaphore({
    most: asksAtOnce,
    inLine: Number.POSITIVE_INFINITY,
    full: () => new Failure('overloaded', `provider ${name} is asked too much at once`, { source: 'ours' }),
  })

export function createAsks({ clock, pinMs, admit, onAttempt, trace }: AsksOptions): Asks {
  const gates = new Map<string, Semaphore>()

  return {
    async ask(provider, upload, signal) {
      const { name } = provider
      const gate = gates.get(name) ?? gateOf(name)
      gates.set(name, gate)
      const attempt = await gate.run(
        () => attemptPin(provider, upload, { ms: pinMs, clock, signal, admit, trace }),
        signal,
      )
      onAttempt?.(attempt)
      return attempt
    },
  }
}

export type StandingAfter = (attempt: ProviderAttempt, tries: number) => Standing

/** Where a provider stands after an attempt. */
export const createStandingAfter =
  (clock: Clock, random: () => number): StandingAfter =>
  (attempt, tries) => {
    if (attempt.isHeld) return { kind: 'provider', state: 'pinned', tries }
    const { class: kind, why } = attempt
    const notBefore = clock.now() + nextTryMs(attempt, tries, random)
    return { kind: 'provider', state: 'pending', tries, notBefore, class: kind, why }
  }

export const wantedNow = { kind: 'provider', state: 'pending', tries: 0 } as const

export type ProviderAttempt =
  | { readonly provider: string; readonly isHeld: true; readonly ms: number }
  | {
      readonly provider: string
      readonly isHeld: false
      readonly ms: number
      readonly class: FailureClass
      readonly why: string
      readonly retryAfterMs: number | undefined
      readonly isDiskFull: boolean
    }

type AttemptOptions = {
  readonly ms: number
  readonly clock: Clock
  readonly signal: AbortSignal
  /** Throws a Failure for a CID that must not be kept: then the provider is not asked. */
  readonly admit: (cid: CID) => void
  readonly trace?: Trace | undefined
}

// Bytes a second of the slowest provider that is worth waiting for.
const slowestBytes = 256 * 1024

/** Rejects only when `signal` aborts: any other failure is a result. */
async function attemptPin(provider: Provider, upload: Upload, options: AttemptOptions): Promise<ProviderAttempt> {
  const span = options.trace?.ask('provider pin')
  if (!span) return askToPin(provider, upload, options)
  const facts = {
    'cidgate.provider': provider.name,
    'cidgate.bytes': upload.carBytes,
    'cidgate.cid': upload.cid.toString(),
  }
  try {
    const attempt = await span.run(() => askToPin(provider, upload, options))
    const outcome = attempt.isHeld ? 'pinned' : attempt.class
    span.end({ ...facts, 'cidgate.outcome': outcome }, !attempt.isHeld)
    return attempt
  } catch (error) {
    span.end({ ...facts, 'cidgate.outcome': 'cancelled' }, false)
    throw error
  }
}

async function askToPin(provider: Provider, upload: Upload, options: AttemptOptions): Promise<ProviderAttempt> {
  const { clock, signal } = options
  const ms = options.ms + Math.ceil((upload.carBytes / slowestBytes) * 1000)
  const late = () =>
    new Failure('timeout', `provider ${provider.name}: no answer within ${ms} ms`, {
      source: 'provider',
      facts: { class: 'transient' },
    })
  const began = clock.monotonic()
  const took = () => Math.round(clock.monotonic() - began)
  try {
    options.admit(upload.cid)
    const cid = await withDeadline({ ms, clock, signal, late }, (own) => provider.pin(upload, own))
    if (nameOf(cid) === nameOf(upload.cid)) return { provider: provider.name, isHeld: true, ms: took() }
    throw new Failure(
      'hash-mismatch',
      `provider ${provider.name}: answered with the wrong CID ${cid}; the upload is ${upload.cid}`,
      {
        source: 'provider',
        facts: { class: 'content' },
      },
    )
  } catch (error) {
    signal.throwIfAborted()
    const why = isFailure(error) ? error.message : `provider ${provider.name} failed in a way it should not`
    return {
      provider: provider.name,
      isHeld: false,
      ms: took(),
      class: classOf(error),
      why,
      retryAfterMs: isFailure(error) ? error.retryAfterMs : undefined,
      isDiskFull: provider.traits.local && classOf(error) === 'quota',
    }
  }
}

const classes: ReadonlySet<string> = new Set<FailureClass>(['auth', 'quota', 'transient', 'content'])

/** A provider that a program brings may throw anything. */
function classOf(error: unknown): FailureClass {
  const named = isFailure(error) ? error.facts.class : undefined
  return named !== undefined && classes.has(named) ? named : 'transient'
}

const second = 1000
const minute = 60 * second
// A failure that only an operator can repair is tried again rarely, in case it was repaired.
const minRetryMs: Readonly<Record<FailureClass, number>> = {
  transient: second,
  auth: 15 * minute,
  quota: 15 * minute,
  content: 60 * minute,
}
const maxRetryMs: Readonly<Record<FailureClass, number>> = {
  transient: 10 * minute,
  auth: 60 * minute,
  quota: 60 * minute,
  content: 360 * minute,
}

/** Doubles each time, with jitter, and is never shorter than the provider's Retry-After. */
function nextTryMs(attempt: ProviderAttempt & { readonly isHeld: false }, tries: number, random: () => number): number {
  const { class: kind, retryAfterMs = 0 } = attempt
  const backoff = Math.min(maxRetryMs[kind], minRetryMs[kind] * 2 ** Math.min(20, tries - 1))
  return Math.round(Math.max(backoff * (0.8 + 0.4 * random()), retryAfterMs * (1 + 0.1 * random())))
}

const askMs = 30_000

export type InTime = <T>(provider: Provider, signal: AbortSignal, work: (own: AbortSignal) => Promise<T>) => Promise<T>

export const createInTime =
  (clock: Clock): InTime =>
  (provider, signal, work) => {
    const late = () =>
      new Failure('timeout', `provider ${provider.name}: no answer within ${askMs} ms`, { source: 'provider' })
    return withDeadline({ ms: askMs, clock, signal, late }, work)
  }

export const notConfigured = 'no provider of that name is configured'

// State of the uploads that all gateways over one data folder share: after a reload there are two or more for a while. None may
// delete what another one receives, or ask a provider that another one is asking.

export interface SharedUploads {
  /** Waits while this upload is being deleted. Call the answer once its client has one. */
  share(name: string): Promise<() => void>
  /** Runs while nobody uploads this file, and no other work of this kind; `busy` where somebody does. */
  alone<T>(name: string, work: () => Promise<T>): Promise<T | 'busy'>
  isAlone(name: string): boolean
  /** Notes a question to a holder about an upload, until `done` settles: the answer is in the ledger then. */
  asking(name: string, holder: string, question: Question): void
  isAsking(name: string, holder: string): boolean
  /** Of what is read from the ledger, the uploads that this holder is not asked about, nor was while it was read. */
  unasked<T extends { readonly cid: CID }>(holder: string, read: () => Promise<readonly T[]>): Promise<T[]>
  /** Ends every question about this upload. */
  stop(name: string, reason: unknown): Promise<void>
  /** Rises with each change by an operator: what was read of the ledger before may be out of date. */
  readonly changes: number
  changed(): void
  /** Each looks for what is due, for one gateway. */
  readonly wakes: Set<() => void>
}

type Question = { readonly stop: AbortController; readonly done: Promise<unknown> }

export function createSharedUploads(): SharedUploads {
  const sharers = new Map<string, number>()
  const deleting = new Map<string, Promise<unknown>>()
  const questions = new Map<string, Map<string, Question>>()
  const reads = new Set<Set<string>>()
  let changes = 0

  async function notAlone(name: string): Promise<void> {
    for (let other = deleting.get(name); other; other = deleting.get(name)) await other
  }

  return {
    async share(name) {
      if (deleting.has(name)) await notAlone(name)
      sharers.set(name, (sharers.get(name) ?? 0) + 1)
      return () => {
        const left = (sharers.get(name) ?? 1) - 1
        if (left > 0) sharers.set(name, left)
        else sharers.delete(name)
      }
    },
    async alone(name, work) {
      await notAlone(name)
      if (sharers.has(name)) return 'busy'
      const done = work()
      const settled = done.catch(() => {}).finally(() => deleting.delete(name))
      deleting.set(name, settled)
      return done
    },
    isAlone: (name) => deleting.has(name),
    asking(name, holder, question) {
      const all = questions.get(name) ?? new Map<string, Question>()
      questions.set(name, all.set(holder, question))
      const end = () => {
        for (const ended of reads) ended.add(`${holder} ${name}`)
        if (all.get(holder) === question) all.delete(holder)
        if (all.size === 0 && questions.get(name) === all) questions.delete(name)
      }
      question.done.then(end, end)
    },
    isAsking: (name, holder) => questions.get(name)?.has(holder) ?? false,
    async unasked(holder, read) {
      const ended = new Set<string>()
      reads.add(ended)
      try {
        const found = await read()
        return found.filter(({ cid }) => {
          const name = nameOf(cid)
          return !questions.get(name)?.has(holder) && !ended.has(`${holder} ${name}`)
        })
      } finally {
        reads.delete(ended)
      }
    },
    async stop(name, reason) {
      const all = [...(questions.get(name)?.values() ?? [])]
      for (const { stop } of all) stop.abort(reason)
      await Promise.allSettled(all.map(({ done }) => done))
    },
    get changes() {
      return changes
    },
    changed() {
      changes++
    },
    wakes: new Set(),
  }
}
