// Cache-Status (RFC 9211): the source of a response, derived from the request's account.
import type { Account } from '../../observe/account.ts'

const quoted = (text: string): string => `"${text.replace(/[^\x20-\x7e]|["\\]/g, '')}"`

export function cacheStatus({ fetches, tier, winner }: Account): string {
  if (fetches === 0) return tier === undefined ? 'cidgate' : `cidgate; hit; detail=${token(tier)}`
  return winner === undefined ? 'cidgate; fwd=miss' : `cidgate; fwd=miss; detail=${quoted(winner)}`
}

const token = (text: string): string => (/^[A-Za-z][A-Za-z0-9._-]*$/.test(text) ? text : quoted(text))
