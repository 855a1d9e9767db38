// The Failures of uploads, in one place, so that one trouble always has the same message.
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
