// Messages between the owner of the data folder and a worker: notifications, requests with a
// timeout, and heartbeats.
import type { Clock } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'

/** The common part of ChildProcess and the child's `process`. */
export type Line = {
  send?(message: unknown, handle?: unknown, callback?: (error: Error | null) => void): unknown
  on(event: 'message', listener: (message: unknown, handle: unknown) => void): unknown
}

export type Listen = (body: unknown, handle: unknown) => unknown

export type Channel = ReturnType<typeof createChannel>

type Message = {
  readonly topic: string
  readonly body?: unknown
  /** Set for a request, which expects an answer. */
  readonly id?: number
  /** The id of the request that this answers. */
  readonly to?: number
  readonly error?: string
}

export function createChannel(line: Line, clock: Clock) {
  const listeners = new Map<string, Listen>()
  const open = new Map<number, { resolve(body: unknown): void; reject(error: Error): void }>()
  let next = 1
  let isOver = false

  // Send errors are ignored: if the other process is gone, its exit is handled elsewhere.
  const send = (message: Message, handle?: unknown): void => {
    if (!isOver) line.send?.(message, handle, () => {})
  }

  async function answer({ topic, body, id }: Message, handle: unknown): Promise<void> {
    try {
      const own = await listeners.get(topic)?.(body, handle)
      if (id !== undefined) send({ topic, to: id, body: own })
    } catch (error) {
      if (id !== undefined) send({ topic, to: id, error: error instanceof Error ? error.message : String(error) })
    }
  }

  line.on('message', (message, handle) => {
    const got = message as Message
    if (got.to === undefined) return void answer(got, handle)
    const question = open.get(got.to)
    open.delete(got.to)
    if (got.error !== undefined) question?.reject(new Failure('upstream-error', got.error, { source: 'ours' }))
    else question?.resolve(got.body)
  })

  return {
    send: (topic: string, body?: unknown, handle?: unknown): void => send({ topic, body }, handle),
    /** Rejects if the other process fails at it, exits, or exceeds the timeout. */
    ask(topic: string, body: unknown, ms: number): Promise<unknown> {
      const id = next++
      const { promise, resolve, reject } = Promise.withResolvers<unknown>()
      const cancel = clock.after(ms, () =>
        reject(new Failure('timeout', `no answer to ${topic} within ${ms} ms`, { source: 'ours' })),
      )
      open.set(id, { resolve, reject })
      if (isOver) reject(gone())
      else send({ topic, body, id })
      return promise.finally(() => {
        cancel()
        open.delete(id)
      })
    },
    /** Sets the one listener for a topic. Its result, or what that resolves to, is the answer. */
    on(topic: string, listen: Listen): void {
      listeners.set(topic, listen)
    },
    /** Marks the other process as gone: no request is answered any more. */
    end(): void {
      isOver = true
      for (const { reject } of open.values()) reject(gone())
    },
  }
}

const gone = (): Failure => new Failure('upstream-error', 'the other process is gone', { source: 'ours' })

const everyMs = 1000
const maxMissed = 10

/** Calls `silent` each second while the other process is silent. Returns a function that stops. */
export function createHeartbeat(channel: Channel, clock: Clock, silent: () => void): () => void {
  let missed = 0
  let cancel = () => {}
  channel.on('alive', () => {
    missed = 0
  })
  function beat(): void {
    channel.send('alive')
    cancel = clock.after(everyMs, beat)
    if (++missed > maxMissed) silent()
  }
  beat()
  return () => cancel()
}
