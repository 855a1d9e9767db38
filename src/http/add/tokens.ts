// Which clients may upload: all of them, or those that send a token. Tokens are compared in constant time, whatever
// their lengths.
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { Failure } from '../../core/failure.ts'

export interface Tokens {
  /** Throws a Failure when the client sends none of the tokens. */
  check(headers: IncomingHttpHeaders): void
}

export function createTokens(auth: 'none' | { readonly tokens: readonly string[] }): Tokens {
  if (auth === 'none') return { check: () => {} }
  const known = auth.tokens.map(digest)
  return {
    check(headers) {
      const shown = shownBy(headers)
      if (shown === undefined || !isKnown(known, digest(shown))) throw refused()
    },
  }
}

/** Compares with every token, so that the time does not tell which one matched. */
function isKnown(known: readonly Buffer[], shown: Buffer): boolean {
  let found = false
  for (const token of known) if (timingSafeEqual(token, shown)) found = true
  return found
}

function shownBy(headers: IncomingHttpHeaders): string | undefined {
  const bearer = /^Bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
  const own = headers['x-auth-token']
  return bearer ?? (typeof own === 'string' ? own : undefined)
}

const digest = (token: string): Buffer => createHash('sha256').update(token).digest()

const refused = (): Failure =>
  new Failure('refused', 'uploads need a token here: send it as Authorization: Bearer …', { source: 'client' })
