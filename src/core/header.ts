// Headers as others send them to us: one value of one that may come twice, and Retry-After (RFC 9110 §10.2.3).

/** The first value: Node makes a list of a header that came more than once. */
export const oneOf = (value: string | string[] | undefined): string | undefined =>
  Array.isArray(value) ? value[0] : value

const mostMs = 86_400_000

/** Milliseconds from now. Seconds or a date, whole: only what no operator can have meant is bounded. */
export function parseRetryAfter(value: string | undefined, now: number): number | undefined {
  if (value === undefined) return undefined
  const ms = /^\d+$/.test(value.trim()) ? Number(value) * 1000 : Date.parse(value) - now
  return Number.isNaN(ms) ? undefined : Math.min(mostMs, Math.max(0, ms))
}
