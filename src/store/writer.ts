// Commits: the operations that came in one iteration of the event loop, or while the commit before was under way, become one
// transaction in a thread of its own. Each caller hears of its own operation.
import { asError, type ErrorText } from './engine.ts'
import { blocksAtOnce, type Operation, type Outcome, weightOf } from './operations.ts'
import { startThread } from './places.ts'
import type { Answer, FromWriter, Opened, WriterData } from './writer-thread.ts'

export interface Writer {
  /** Rejects where the database cannot be written. */
  readonly opened: Promise<Opened>
  /** Durable when it resolves. */
  commit(operation: Operation): Promise<Outcome>
  /** Ends when what was asked for is done. */
  close(): Promise<void>
}

type Job = {
  readonly operation: Operation
  readonly weight: number
  readonly resolve: (outcome: Outcome) => void
  readonly reject: (error: unknown) => void
}

const lightBlocks = 256

export function createWriter(data: WriterData): Writer {
  const opened = Promise.withResolvers<Opened>()
  opened.promise.catch(() => {})
  const closed = Promise.withResolvers<void>()
  let waiting: Job[] = []
  let running: readonly Job[] = []
  let isOpen = false
  let isDue = false
  let isClosing = false
  let failed: Error | undefined

  const thread = startThread('writer', 'store writer', data)
  // An idle thread does not keep the process; one with a commit does.
  thread.unref()
  thread.on('message', heard)
  thread.on('error', giveUp)
  thread.on('exit', () => {
    giveUp(new Error('the thread that writes the database ended'))
    closed.resolve()
  })

  function heard(message: FromWriter): void {
    if ('failed' in message) return giveUp(asError(message.failed))
    if ('opened' in message) {
      isOpen = true
      opened.resolve(message.opened)
    } else settle(message.answers)
    if (waiting.length > 0) send()
    else if (isClosing) end()
    else thread.unref()
  }

  function settle(answers: readonly Answer[]): void {
    const jobs = running
    running = []
    for (const [index, { resolve, reject }] of jobs.entries()) {
      const answer = answers[index] as Answer
      if ('outcome' in answer) resolve(answer.outcome)
      else reject(asError(answer.error as ErrorText))
    }
  }

  function giveUp(error: Error): void {
    failed ??= error
    opened.reject(failed)
    const jobs = [...running, ...waiting]
    running = []
    waiting = []
    for (const { reject } of jobs) reject(failed)
    if (isClosing) void thread.terminate()
  }

  function send(): void {
    isDue = false
    if (!isOpen || running.length > 0 || waiting.length === 0) return
    running = takeSome()
    thread.ref()
    thread.postMessage(running.map(({ operation }) => operation))
  }

  /** All that are light, and of the others as many as one commit takes: they wait for each other, and nobody for them all. */
  function takeSome(): readonly Job[] {
    const taken: Job[] = []
    const later: Job[] = []
    let weight = 0
    for (const job of waiting) {
      const isNow = job.weight <= lightBlocks || weight === 0 || weight + job.weight <= blocksAtOnce
      if (isNow && job.weight > lightBlocks) weight += job.weight
      ;(isNow ? taken : later).push(job)
    }
    waiting = later
    return taken
  }

  function end(): void {
    if (failed || !isOpen) void thread.terminate()
    else thread.postMessage('close')
  }

  return {
    opened: opened.promise,
    commit(operation) {
      const refusal = failed ?? (isClosing ? new Error('the store is closed') : undefined)
      if (refusal) return Promise.reject(refusal)
      return new Promise((resolve, reject) => {
        waiting.push({ operation, weight: weightOf(operation), resolve, reject })
        if (!isOpen) thread.ref()
        if (isDue) return
        isDue = true
        setImmediate(send)
      })
    },
    async close() {
      isClosing = true
      thread.ref()
      await opened.promise.catch(() => {})
      if (running.length === 0 && waiting.length === 0) end()
      await closed.promise
    },
  }
}
