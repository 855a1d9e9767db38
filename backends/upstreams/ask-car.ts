// One question to an upstream whose answer is a CAR: its blocks are given one by one as they come, without a promise for any of them.
import type { Block } from '../../src/core/cid.ts'
import { CarParser } from '../../src/core/wire/car-stream.ts'
import { PushedAsk, type PushedQuestion } from './ask-whole.ts'
import type { DagAnswer, DagAsk } from './contract.ts'

export type CarAnswer = DagAnswer & {
  /** The upstream answers with a CAR. */
  begun(): void
}

export class CarAsk extends PushedAsk implements DagAsk {
  readonly #answer: CarAnswer
  readonly #parser = new CarParser()
  #isPaused = false
  #isDraining = false
  #isEnded = false

  constructor(question: PushedQuestion, answer: CarAnswer) {
    super(question)
    this.#answer = answer
    this.dispatch()
  }

  protected get mayAskAgain(): boolean {
    return this.movedAt === undefined
  }

  protected override get isHeld(): boolean {
    return this.#isPaused
  }

  /** The socket is left alone from its next piece on. */
  pause(): void {
    this.#isPaused = true
  }

  resume(): void {
    if (!this.#isPaused || this.isOver) return
    this.#isPaused = false
    if (this.movedAt !== undefined) this.movedAt = this.question.clock.monotonic()
    this.#drain()
    if (!this.#isPaused && !this.isOver) this.controller?.resume()
  }

  protected begin(): void {
    this.#answer.begun()
  }

  protected data(chunk: Uint8Array): void {
    this.#parser.push(chunk)
    this.#drain()
    if (this.#isPaused && !this.isOver) this.controller?.pause()
  }

  protected end(): void {
    this.#isEnded = true
    this.#drain()
  }

  protected failed(error: unknown): void {
    this.#answer.failed(error)
  }

  #drain(): void {
    if (this.#isDraining) return
    this.#isDraining = true
    try {
      while (!this.#isPaused && !this.isOver) {
        const block = this.#parser.next()
        if (block) this.#answer.came(block)
        else if (this.#isEnded) this.#finishWhole()
        else break
      }
    } catch (error) {
      this.fail(error)
    } finally {
      this.#isDraining = false
    }
  }

  #finishWhole(): void {
    this.#parser.end()
    this.finish()
    this.#answer.ended()
  }
}

/** The blocks of a question, pulled one by one. */
export async function* pulledFrom(ask: (answer: DagAnswer) => DagAsk, signal: AbortSignal): AsyncGenerator<Block> {
  signal.throwIfAborted()
  const blocks: Block[] = []
  let isEnded = false
  const failures: unknown[] = []
  let news = Promise.withResolvers<void>()
  const asked = ask({
    came(block) {
      blocks.push(block)
      asked.pause()
      news.resolve()
    },
    ended() {
      isEnded = true
      news.resolve()
    },
    failed(error) {
      failures.push(error)
      news.resolve()
    },
  })
  const leave = () => {
    failures.push(signal.reason)
    asked.stop()
    news.resolve()
  }
  signal.addEventListener('abort', leave, { once: true })
  try {
    for (;;) {
      await news.promise
      news = Promise.withResolvers()
      if (failures.length === 0) yield* blocks.splice(0)
      if (failures.length > 0) throw failures[0]
      if (isEnded) return
      asked.resume()
    }
  } finally {
    signal.removeEventListener('abort', leave)
    asked.stop()
  }
}
