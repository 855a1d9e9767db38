// One question at an upstream, in the hand of a test: its promise resolves when the question has its slot.
import type { CID } from 'multiformats/cid'
import type { Clock } from '../../src/core/clock.ts'
import { type AskKind, Attempts, type LetGo, Question, type Rank } from '../../src/retrieval/upstreams/attempts.ts'
import type { Member } from '../../src/retrieval/upstreams/pool.ts'
import type { UpstreamHealth } from '../../src/retrieval/upstreams/upstream-health.ts'

const timeoutMs = 4_000

export type Wish = {
  readonly kind?: AskKind
  readonly key?: string
  readonly rank?: Rank
  readonly client?: string
  readonly waitedMs?: number
  readonly signal?: AbortSignal
}

export type Asked = {
  readonly question: Question
  /** Why its slot was taken for others. */
  evicted(): unknown
  brought(bytes: number, waitedMs: number): void
  done(): void
  letGo(why: LetGo): void
  /** The answer says what to hold against the upstream if another one has it. */
  failed(error: unknown): () => void
}

export function enter(clock: Clock, health: UpstreamHealth, wish: Wish = {}): Promise<Asked> {
  const { kind = 'block', key = 'a', rank = 'first', client = '', waitedMs = 0, signal } = wish
  if (signal?.aborted) return Promise.reject(signal.reason)
  const { promise, resolve, reject } = Promise.withResolvers<Asked>()
  const member = { upstream: { name: 'one' }, health } as unknown as Member
  const attempts = new Attempts(clock, timeoutMs, { client, hasBegun: false })
  let eviction: unknown
  const asker = {
    begun(question: Question) {
      const now = () => clock.monotonic()
      resolve({
        question,
        evicted: () => eviction,
        brought: (bytes, ms) => question.brought(bytes, ms, now()),
        done: () => question.end('enough', now()),
        letGo: (why) => question.end(why, now()),
        failed(error) {
          Object.assign(question, { ms: now() - question.at, how: 'failed', error })
          health.ended(question, now())
          return () => health.lacked(question)
        },
      })
    },
    refused(_question: Question, error: unknown) {
      eviction = error
      reject(error)
    },
  }
  const question = new Question(attempts, member, kind, undefined as unknown as CID, key, asker)
  question.rank = rank
  question.at = clock.monotonic()
  question.giveUpAt = question.at + timeoutMs - waitedMs
  health.ask(question, clock.monotonic())
  signal?.addEventListener('abort', () => {
    question.end('enough', clock.monotonic())
    reject(signal.reason)
  })
  return promise
}
