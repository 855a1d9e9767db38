// The source of a denylist. The operator sees its location without secrets, clients only its name.

/** A file or URL in the configuration. */
export type DenylistEntry =
  | string
  | {
      readonly url: string
      /** False lets the gateway start without the list while it is unavailable. */
      readonly required: boolean
      /** A file with an earlier text of the list, used at start if the URL fails. */
      readonly copy?: string | undefined
    }

export type ListText = {
  readonly text: string
  /** Called when the text was accepted as a list. */
  taken(): Promise<void>
}

export type DenylistSource = {
  /** The name shown to clients. */
  readonly name: string
  /** The location shown to the operator, without query or password. */
  readonly where: string
  readonly everyMs: number
  /** True if a text with neither a rule nor a header is not accepted as a list. */
  readonly isEmptyOdd: boolean
  /**
   * Returns the text, or undefined if it is unchanged. `anew`: also returns one that was rejected
   * before.
   */
  read(signal: AbortSignal, anew?: boolean): Promise<ListText | undefined>
  /** The last text that an earlier process accepted. */
  lastCopy(): Promise<string | undefined>
}

export const mostBytes = 512 * 1024 * 1024

/** The first line of an error's message; an AggregateError has only a code. */
export function whyOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.name === 'TimeoutError') return 'it timed out'
  const { code } = error as NodeJS.ErrnoException
  return error.message.split('\n', 1)[0] || code || error.name
}
