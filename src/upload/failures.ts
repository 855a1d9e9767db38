// The Failures of uploads, in one place, so that one trouble always has the same message.
import { codeOf, isNoRoom, remedyOf } from '../core/disk/files.ts'
import { Failure } from '../core/failure.ts'

export const malformed = (message: string, cause?: unknown): Failure =>
  new Failure('malformed', message, { source: 'client', cause })

export const tooLarge = (maxBytes: number): Failure =>
  new Failure('too-large', `the upload is larger than the ${maxBytes} bytes that are allowed here (upload.maxBytes)`, {
    source: 'client',
  })

export const nobodyKeeps = (): Failure =>
  new Failure(
    'upstream-error',
    'this gateway takes no uploads: its configuration has no provider (pinning.providers)',
    {
      source: 'provider',
      facts: { outcomes: [] },
    },
  )

export const busy = (message: string, retryAfterMs = 1000): Failure =>
  new Failure('overloaded', message, { source: 'ours', retryAfterMs })

const outOfFiles: ReadonlySet<string> = new Set(['EMFILE', 'ENFILE'])

/** Turns an error of our own disk into a Failure; a Failure passes through unchanged. */
export function diskFailure(error: unknown, what: string): Failure {
  if (error instanceof Failure) return error
  const code = codeOf(error) ?? 'an unknown error'
  return isNoRoom(error)
    ? new Failure('disk-full', `disk full: no room to ${what}; free space on the disk of the data folder`, {
        source: 'ours',
        cause: error,
        facts: { class: 'quota' },
      })
    : new Failure(
        outOfFiles.has(code) ? 'overloaded' : 'disk-error',
        `cannot ${what} in the data folder: ${code}; ${remedyOf(error)}`,
        {
          source: 'ours',
          cause: error,
          ...(outOfFiles.has(code) && { retryAfterMs: 1000 }),
        },
      )
}
