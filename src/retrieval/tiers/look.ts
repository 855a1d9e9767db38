// A question to the slow tiers in turn, the nearest first. The next tier is asked when the one
// before has nothing, or takes longer than is worth waiting for; a late tier goes on, and the first
// hit of any tier counts. All who want the same join it; the last one that leaves ends it.
import type { Call } from '../../../backends/tiers/contract.ts'
import { cancelled } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { SlowLayer } from './layer.ts'

/** Undefined: the tier has nothing. */
type LayerQuestion<T> = (layer: SlowLayer, signal: AbortSignal, call: Call) => Promise<T | undefined>

// Made once: it says nothing of where it is thrown, and finding that out is dear.
const elsewhere = Object.freeze(new DOMException('another tier has it', 'AbortError'))

export class Look<T> {
  /** Undefined: no slow tier has it, or none could be asked. Rejects only when it was ended. */
  readonly found: Promise<T | undefined>
  /**
   * Resolves as soon as all were asked, and none of those without an answer is worth waiting for.
   * The look goes on.
   */
  readonly overdue: Promise<void>
  /**
   * Resolves when no tier of this machine has it, or could say so. They may be slow because we are
   * busy.
   */
  readonly here: Promise<void>
  readonly #layers: readonly SlowLayer[]
  readonly #log: Log
  readonly #question: LayerQuestion<T>
  readonly #own = new AbortController()
  readonly #found = Promise.withResolvers<T | undefined>()
  readonly #overdue = Promise.withResolvers<void>()
  readonly #here = Promise.withResolvers<void>()
  /** Those without an answer, and whether each is overdue. */
  readonly #open = new Map<SlowLayer, boolean>()
  /** Those that failed, or still owe an answer that was late. */
  readonly #owing = new Set<SlowLayer>()
  #readers = 0
  #next = 0
  #hereLeft = 0
  #isOver = false

  constructor(layers: readonly SlowLayer[], log: Log, question: LayerQuestion<T>) {
    this.#layers = layers
    this.#log = log
    this.#question = question
    this.found = this.#found.promise
    this.overdue = this.#overdue.promise
    this.here = this.#here.promise
    this.found.catch(() => {})
    for (const { tier } of layers) if (!tier.traits.shared) this.#hereLeft++
    if (this.#hereLeft === 0) this.#here.resolve()
    this.#askNext()
  }

  /**
   * Whether each tier that was asked so far said whether it has it: none failed, and none that was
   * late still owes its answer.
   */
  get haveAnswered(): boolean {
    return this.#owing.size === 0
  }

  join(): this {
    this.#readers++
    return this
  }

  leave(): void {
    if (--this.#readers === 0) this.abort(unwanted)
  }

  abort(reason: unknown): void {
    this.#end(() => this.#found.reject(reason), reason)
  }

  #end(settle: () => void, reason: unknown): void {
    if (this.#isOver) return
    this.#isOver = true
    settle()
    if (this.#open.size > 0) this.#own.abort(reason)
  }

  #askNext(): void {
    const layer = this.#layers[this.#next++]
    if (this.#isOver) return
    if (layer) void this.#ask(layer)
    else if (this.#open.size === 0) this.#end(() => this.#found.resolve(undefined), elsewhere)
    else if ([...this.#open.values()].every((isOverdue) => isOverdue)) this.#overdue.resolve()
  }

  async #ask(layer: SlowLayer): Promise<void> {
    const { signal } = this.#own
    this.#open.set(layer, false)
    const overdue = (isWell = false) => {
      if (!isWell) this.#owing.add(layer)
      if (this.#open.get(layer) !== false) return
      this.#open.set(layer, true)
      this.#askNext()
    }
    const question = async (call: Call) => {
      try {
        const answer = await this.#question(layer, signal, call)
        this.#owing.delete(layer)
        return answer
      } catch (error) {
        this.#owing.add(layer)
        throw error
      }
    }
    // It rejects only when the look is over.
    const answer = await layer.ask(signal, this.#log, question, { overdue }).catch(() => undefined)
    const wasOverdue = this.#open.get(layer)
    this.#open.delete(layer)
    if (answer !== undefined) return this.#end(() => this.#found.resolve(answer), elsewhere)
    if (!layer.tier.traits.shared && --this.#hereLeft === 0) this.#here.resolve()
    // A late tier has had its turn; only the last answer of all ends it.
    if (!wasOverdue || this.#next >= this.#layers.length) this.#askNext()
  }
}

const unwanted = cancelled('no caller waits for it any more')
