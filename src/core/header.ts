// Headers of other services: one value of a header that may come twice, and Retry-After (RFC 9110 §10.2.3).

/** The first value: Node makes a list of a header that came more than once. */
export const oneOf = (value: string | string[] | undefined): string | undefined =>
  Array.isArray(value) ? value[0] : value

const mostMs = 86_400_000

/** Milliseconds from now, for seconds or a date. Kept as sent, up to a day, which no operator exceeds on purpose. */
export function parseRetryAfter(value: string | undefined, now: number): number | undefined {
  if (value === undefined) return undefined
  const ms = /^\d+$/.test(value.trim()) ? Number(value) * 1000 : Date.parse(value) - now
  return Number.isNaN(ms) ? undefined : Math.min(mostMs, Math.max(0, ms))
}
