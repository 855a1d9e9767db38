// The source of a denylist's text, and its name: the operator sees its address without what may be a secret, clients
// only its name.

/** A file or an address, as the operator names it. */
export type DenylistEntry =
  | string
  | {
      readonly url: string
      /** False: the gateway starts without the list while it cannot be had. */
      readonly required: boolean
      /** A file with an earlier text of the list, for a start at which the address gives none. */
      readonly copy?: string | undefined
    }

export type ListText = {
  readonly text: string
  /** Called when the text was accepted as a list. */
  taken(): Promise<void>
}

export type DenylistSource = {
  /** The name that clients see. */
  readonly name: string
  /** The address that the operator sees, never with a query or password. */
  readonly where: string
  readonly everyMs: number
  /** A text without a rule and without a header is not a list. */
  readonly isEmptyOdd: boolean
  /** The text, or undefined while it is the same as before. `anew`: also one that was refused when it was read last. */
  read(signal: AbortSignal, anew?: boolean): Promise<ListText | undefined>
  /** The text that an earlier process accepted last. */
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
