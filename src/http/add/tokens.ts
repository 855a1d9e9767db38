// Authorizes uploads: all clients, or those with a token. Tokens are compared in constant time,
// whatever their lengths.
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { Failure } from '../../core/failure.ts'
import type { NamedQuota, Quota } from '../../upload/quota/quotas.ts'
import { HttpRefusal } from '../wire/refusal.ts'

export type Token =
  | string
  | {
      readonly name?: string | undefined
      readonly token?: string | undefined
      readonly sha256?: string | undefined
      /** Milliseconds since the epoch. */
      readonly expires?: number | undefined
      readonly mayDelete?: boolean | undefined
      readonly quota?: Quota | undefined
    }

/** `none` and `open` let every client upload; they differ in which clients reach the address. */
export type UploadAuth = 'none' | 'open' | { readonly tokens: readonly Token[] }

export interface Tokens {
  /**
   * Returns the name of the client's token, if it sent one. Throws a Failure if a token is required
   * and missing.
   */
  check(headers: IncomingHttpHeaders): string | undefined
  /** Returns the name of the token. Throws a Failure unless it may delete. */
  checkMayDelete(headers: IncomingHttpHeaders): string | undefined
  /** The daily quota of the token; undefined if it has none. */
  quotaOf(headers: IncomingHttpHeaders): NamedQuota | undefined
}

type Known = {
  readonly digest: Buffer
  readonly name: string | undefined
  readonly expires: number
  readonly mayDelete: boolean
  readonly quota: NamedQuota | undefined
}

export function createTokens(auth: UploadAuth, now: () => number = Date.now): Tokens {
  if (typeof auth === 'string')
    return {
      check: () => undefined,
      quotaOf: () => undefined,
      checkMayDelete() {
        throw mayNotDelete()
      },
    }
  const known = auth.tokens.map(knownOf)
  const hasQuotas = known.some(({ quota }) => quota !== undefined)
  const tokenIn = (headers: IncomingHttpHeaders): Known => {
    const token = find(known, shownBy(headers).map(digest))
    if (!token) throw refused('uploads need a token here: send it as Authorization: Bearer …')
    if (token.expires <= now())
      throw refused(`this token ended at ${new Date(token.expires).toISOString()}: ask the operator for another one`)
    return token
  }
  return {
    check: (headers) => tokenIn(headers).name,
    quotaOf: (headers) => (hasQuotas ? tokenIn(headers).quota : undefined),
    checkMayDelete(headers) {
      const { name, mayDelete } = tokenIn(headers)
      if (!mayDelete) throw mayNotDelete()
      return name
    },
  }
}

function mayNotDelete(): HttpRefusal {
  const said =
    'pins are deleted here with a token that has mayDelete: true (upload.auth.tokens); the operator can delete them on the admin address as well (cidgate pins rm)'
  return new HttpRefusal('refused', said, { source: 'client', status: 403 })
}

function knownOf(token: Token): Known {
  if (typeof token === 'string') return knownOf({ token })
  const { name, sha256, expires = Number.POSITIVE_INFINITY, mayDelete = false, quota } = token
  const own = sha256 === undefined ? digest(token.token ?? '') : Buffer.from(sha256, 'hex')
  const named = quota && name !== undefined ? { token: name, quota } : undefined
  return { digest: own, name, expires, mayDelete, quota: named }
}

/** Compares with every token, so that the time does not reveal which one matched. */
function find(known: readonly Known[], shown: readonly Buffer[]): Known | undefined {
  let found: Known | undefined
  for (const one of shown) for (const token of known) if (timingSafeEqual(token.digest, one)) found = token
  return found
}

/**
 * Clients of Kubo's RPC send HTTP Basic: the token is the password, or user and password together.
 */
function shownBy(headers: IncomingHttpHeaders): string[] {
  const [, scheme = '', value = ''] = /^(Bearer|Basic) +(\S+) *$/i.exec(headers.authorization ?? '') ?? []
  if (scheme.toLowerCase() === 'bearer') return [value]
  const own = headers['x-auth-token']
  if (scheme === '') return typeof own === 'string' ? [own] : []
  const pair = Buffer.from(value, 'base64').toString()
  return [pair, pair.slice(pair.indexOf(':') + 1)]
}

const digest = (token: string): Buffer => createHash('sha256').update(token).digest()

const refused = (message: string): Failure => new Failure('refused', message, { source: 'client' })
