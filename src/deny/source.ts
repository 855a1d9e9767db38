// Where the text of a denylist comes from, and how that place is spoken of: to the operator by its address without what
// may be a secret in it, to everybody else by its name alone.

export type ListText = {
  readonly text: string
  /** To be called when it turned out to be a list, and to be none that is worse than the one before. */
  taken(): Promise<void>
}

export type DenylistSource = {
  /** What clients are told. */
  readonly name: string
  /** What the operator is told: never with the query or a password of an address. */
  readonly where: string
  readonly everyMs: number
  /** A list without a rule and without a header is none here. */
  readonly isEmptyOdd: boolean
  /** The text, or undefined while it is the same as before. `anew`: also one that was refused when it was read last. */
  read(signal: AbortSignal, anew?: boolean): Promise<ListText | undefined>
  /** What was taken in the life before this one. */
  lastCopy(): Promise<string | undefined>
}

export const mostBytes = 512 * 1024 * 1024

/** The first line of an error's message; that of several addresses at once has only a code. */
export function whyOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.name === 'TimeoutError') return 'it timed out'
  const { code } = error as NodeJS.ErrnoException
  return error.message.split('\n', 1)[0] || code || error.name
}
