// A running gateway that a reload replaces without interrupting requests: new requests go to the
// newest, and an older one is closed when its last request is answered. A wrong configuration
// changes nothing.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { ConfigError } from '../config/complaints.ts'
import type { Log } from '../core/log.ts'
import type { HotAnswers } from '../http/content/hot-answers.ts'
import type { ParserRefusal } from '../http/wire/refusal.ts'
import { noteReload } from '../wiring/admin.ts'
import type { Kept } from '../wiring/kept.ts'

export interface Replaceable {
  readonly handler: RequestListener
  readonly admin: RequestListener
  /** Looks up its response cache. */
  readonly hot?: HotAnswers['find']
  serves(host: string): boolean
  /** Records a request that the server refused itself. */
  refused?(refusal: ParserRefusal): void
  /** The parts that its successor takes over. */
  readonly kept?: Kept
  drain(): void
  close(): Promise<void>
}

type Generation<Running> = { readonly running: Running; inFlight: number; onIdle: (() => void) | undefined }

/** A property of a response: the generation that took its request. */
const taken = Symbol('generation')

export interface Reload<Running extends Replaceable> {
  readonly current: Running
  readonly handler: RequestListener
  readonly admin: RequestListener
  /**
   * Creates the next gateway and switches to it. Returns false if creation failed and the old one
   * stays. One at a time.
   */
  replace(make: () => Promise<Running>, graceMs: number): Promise<boolean>
  /** Resolves when every request was answered, or after `graceMs`; then closes everything. */
  close(graceMs: number): Promise<void>
}

export function createReload<Running extends Replaceable>(first: Running, log: Log): Reload<Running> {
  type Taken = ServerResponse & { [taken]?: Generation<Running> | undefined }
  let newest: Generation<Running> = { running: first, inFlight: 0, onIdle: undefined }
  let turn: Promise<unknown> = Promise.resolve()
  const retiring = new Set<Promise<void>>()

  // Shared by all requests: a closure for each would cost a tenth of a fast-path response.
  function leave(this: Taken): void {
    const generation = this[taken]
    if (!generation) return
    this[taken] = undefined
    generation.inFlight--
    if (generation.inFlight === 0) generation.onIdle?.()
  }

  function serve(which: 'handler' | 'admin') {
    return (request: IncomingMessage, response: Taken) => {
      const generation = newest
      generation.inFlight++
      response[taken] = generation
      response.on('close', leave)
      generation.running[which](request, response)
    }
  }

  async function retire(generation: Generation<Running>, graceMs: number): Promise<void> {
    if (generation.inFlight > 0) {
      const idle = Promise.withResolvers<void>()
      const timer = setTimeout(idle.resolve, graceMs)
      generation.onIdle = idle.resolve
      await idle.promise
      clearTimeout(timer)
    }
    try {
      await generation.running.close()
    } catch (error) {
      log('error', 'gateway.close-failed', { error: String(error) })
    }
  }

  async function replaceNow(make: () => Promise<Running>, graceMs: number): Promise<boolean> {
    try {
      const running = await make()
      const old = newest
      newest = { running, inFlight: 0, onIdle: undefined }
      const retired = retire(old, graceMs)
      retiring.add(retired)
      void retired.finally(() => retiring.delete(retired))
      if (running.kept) noteReload(running.kept, true)
      log('info', 'config.reloaded')
      return true
    } catch (error) {
      if (newest.running.kept) noteReload(newest.running.kept, false)
      const lines = error instanceof ConfigError ? error.message.split('\n') : [String(error)]
      for (const line of lines) log('error', 'config.refused', { why: line })
      return false
    }
  }

  return {
    get current() {
      return newest.running
    },
    handler: serve('handler'),
    admin: serve('admin'),
    replace(make, graceMs) {
      const replaced = turn.then(() => replaceNow(make, graceMs))
      turn = replaced
      return replaced
    },
    async close(graceMs) {
      await turn
      await Promise.all([retire(newest, graceMs), ...retiring])
    },
  }
}
