// Cache-Status (RFC 9211): the source of a response, derived from the request's account.
import type { Account, Brought } from '../../observe/account.ts'

const quoted = (text: string): string => `"${text.replace(/[^\x20-\x7e]|["\\]/g, '')}"`

export function cacheStatus({ fetches, tier, brought }: Account): string {
  if (fetches === 0) return tier === undefined ? 'cidgate' : `cidgate; hit; detail=${token(tier)}`
  return brought.length === 0 ? 'cidgate; fwd=miss' : `cidgate; fwd=miss; detail=${quoted(broughtBy(brought))}`
}

/** Of several, each with its share of the bytes so far. */
function broughtBy(brought: readonly Brought[]): string {
  const [only] = brought
  if (only && brought.length === 1) return only.upstream
  const all = brought.reduce((sum, { bytes }) => sum + bytes, 0)
  return brought.map(({ upstream, bytes }) => `${upstream} ${Math.round((100 * bytes) / (all || 1))}%`).join(', ')
}

const token = (text: string): string => (/^[A-Za-z][A-Za-z0-9._-]*$/.test(text) ? text : quoted(text))
