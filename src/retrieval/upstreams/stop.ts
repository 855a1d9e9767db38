// An abort that hardly anybody listens to. An AbortController and a listener cost more than many a question that they are for:
// here a callback does, and a signal is made for who asks for one.

export class Stop {
  #controller: AbortController | undefined
  #tell: ((reason: unknown) => void) | undefined
  #reason: unknown
  #isStopped = false

  get isStopped(): boolean {
    return this.#isStopped
  }

  get signal(): AbortSignal {
    this.#controller ??= new AbortController()
    if (this.#isStopped && !this.#controller.signal.aborted) this.#controller.abort(this.#reason)
    return this.#controller.signal
  }

  /** Called once, at once where it is stopped already. There is one callback: the last. */
  onStop(tell: (reason: unknown) => void): void {
    if (this.#isStopped) tell(this.#reason)
    else this.#tell = tell
  }

  /** What it is for is over: it holds nothing of it. */
  end(): void {
    this.#tell = undefined
    this.#controller = undefined
  }

  stop(reason: unknown): void {
    if (this.#isStopped) return
    this.#isStopped = true
    this.#reason = reason
    this.#tell?.(reason)
    this.#controller?.abort(reason)
  }
}
