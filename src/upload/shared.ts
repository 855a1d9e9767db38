// State of the uploads that all gateways over one data folder share: after a reload there are two or more for a while. None may
// delete what another one receives, or ask a provider that another one is asking.
import type { CID } from 'multiformats/cid'
import { createWaitingList, type WaitingList } from './pins/ask-again.ts'
import { nameOf } from './stored-upload.ts'

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
  readonly waitingList: WaitingList
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
    waitingList: createWaitingList(),
  }
}
