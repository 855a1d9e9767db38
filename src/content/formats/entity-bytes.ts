// `entity-bytes=from:to` (IPIP-402): the bytes of a file that a CAR has to prove. Both ends are
// inclusive, negative ones count from the end, and `*` is the end.
import { malformedRequest } from './format.ts'

export type EntityBytes = {
  readonly from: number
  /** Undefined means the end. */
  readonly to: number | undefined
}

export function parseEntityBytes(text: string): EntityBytes {
  const match = /^(-?\d{1,19}):(\*|-?\d{1,19})$/.exec(text)
  if (!match)
    throw malformedRequest(`entity-bytes=${text.slice(0, 60)} is not from:to, such as 0:1023, -1024:* or 499:-1000`)
  const from = bounded(match[1] as string)
  const to = match[2] === '*' ? undefined : bounded(match[2] as string)
  if (to !== undefined && from < 0 === to < 0 && from > to) {
    throw malformedRequest(`entity-bytes=${text} begins after its end`)
  }
  return { from, to }
}

/** Go clients write the largest int64 for "to the end"; no file is that long. */
const bounded = (digits: string): number =>
  Math.max(Number.MIN_SAFE_INTEGER, Math.min(Number.MAX_SAFE_INTEGER, Number(digits))) + 0

/**
 * The byte range in a file of this size, `to` excluded; undefined if it is empty, which the root
 * block alone proves.
 */
export function placeEntityBytes(bytes: EntityBytes, size: number): { from: number; to: number } | undefined {
  const from = bytes.from < 0 ? Math.max(0, size + bytes.from) : bytes.from
  const last = bytes.to === undefined ? size - 1 : bytes.to < 0 ? size + bytes.to : bytes.to
  const to = Math.min(last + 1, size)
  return from < to ? { from, to } : undefined
}

/** The range as far as it is known without the size, for fetching a cold file. */
export function hintOf({ from, to }: EntityBytes): { from: number; to?: number } | undefined {
  if (from < 0) return undefined
  return to === undefined || to < 0 ? { from } : { from, to }
}
