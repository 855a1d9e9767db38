// Headers of other services: a value that may be repeated, and Retry-After (RFC 9110 §10.2.3).

/** The first value: Node returns an array for some repeated headers. */
export const oneOf = (value: string | string[] | undefined): string | undefined =>
  Array.isArray(value) ? value[0] : value

const mostMs = 86_400_000

/** Parses seconds or a date to milliseconds from now, capped at a day. */
export function parseRetryAfter(value: string | undefined, now: number): number | undefined {
  if (value === undefined) return undefined
  const ms = /^\d+$/.test(value.trim()) ? Number(value) * 1000 : Date.parse(value) - now
  return Number.isNaN(ms) ? undefined : Math.min(mostMs, Math.max(0, ms))
}
