// Authorizes uploads: all clients, those of this machine, or those with a token. A foreign web page,
// open in a local browser, reaches addresses that its author cannot, so it is refused as Kubo's RPC
// refuses it. Tokens are compared in constant time, whatever their lengths.
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { Failure } from '../../core/failure.ts'
import { isFromAnotherSite, isLoopback } from '../../core/wire/http.ts'
import type { NamedQuota, Quota } from '../../upload/quotas.ts'
import { HttpRefusal, isAtOwnServer } from '../wire/request.ts'

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
type UploadAuth = 'none' | 'open' | { readonly tokens: readonly Token[] }

export type Tokens = ReturnType<typeof createTokens>

type Known = {
  readonly digest: Buffer
  readonly name: string | undefined
  readonly expires: number
  readonly mayDelete: boolean
  readonly quota: NamedQuota | undefined
}

export function createTokens(auth: UploadAuth, now: () => number = Date.now) {
  const known = typeof auth === 'string' ? undefined : auth.tokens.map(knownOf)
  const hasQuotas = known?.some(({ quota }) => quota !== undefined)
  /** Undefined if none is required. Throws a Failure if one is required and missing. */
  const tokenIn = (headers: IncomingHttpHeaders): Known | undefined => {
    if (!known) return undefined
    const token = find(known, shownBy(headers).map(digest))
    if (!token) throw refused('uploads need a token here: send it as Authorization: Bearer …')
    if (token.expires <= now())
      throw refused(`this token ended at ${new Date(token.expires).toISOString()}: ask the operator for another one`)
    return token
  }
  return {
    /** Returns the name of the client's token. Throws a Failure if one is required and missing. */
    check: (headers: IncomingHttpHeaders): string | undefined => tokenIn(headers)?.name,
    /** The daily quota of the token; undefined if it has none. */
    quotaOf: (headers: IncomingHttpHeaders): NamedQuota | undefined =>
      hasQuotas ? tokenIn(headers)?.quota : undefined,
    /** Returns the name of the token. Throws a Failure unless it may delete. */
    checkMayDelete(headers: IncomingHttpHeaders): string | undefined {
      const token = tokenIn(headers)
      if (!token?.mayDelete) throw mayNotDelete()
      return token.name
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

export type Reach = {
  /** True if uploads need no token and the operator has not opened them to all. */
  readonly isForThisMachine: boolean
  /** The client's address as reported by trusted proxies. */
  readonly addressOf: (request: IncomingMessage) => string
}

/**
 * Throws for an upload from another machine. A program that opens its own socket decides itself
 * which clients reach it.
 */
export function refuseStranger(request: IncomingMessage, reach: Reach): void {
  if (!isStranger(request, reach)) return
  const said =
    'uploads without a token are accepted only on the machine of the gateway; the operator can set upload.auth to tokens, or to open'
  throw new HttpRefusal('refused', said, { source: 'client', status: 403 })
}

/**
 * Throws for an upload from a foreign page. A page of this machine (a development server, the front
 * page) may upload.
 */
export function refuseForeignPage(request: IncomingMessage, reach: Reach): void {
  const { origin } = request.headers
  if (!isForeignPage(request, origin, reach)) return
  const said = `a page of ${origin === undefined ? 'another site' : JSON.stringify(origin)} may not upload here without a token; the operator can set upload.auth to open, or to tokens`
  throw new HttpRefusal('refused', said, { source: 'client', status: 403 })
}

/** True if an upload from this client, and from a page of `origin` if given, would be accepted. */
export const mayUpload = (request: IncomingMessage, origin: string | undefined, reach: Reach): boolean =>
  !isStranger(request, reach) && !isForeignPage(request, origin, reach)

const isForeignPage = (request: IncomingMessage, origin: string | undefined, reach: Reach): boolean =>
  reach.isForThisMachine &&
  (origin === undefined ? isFromAnotherSite(request.headers) : !isOfThisMachine(origin)) &&
  isLoopback(reach.addressOf(request))

/** A missing address means a unix socket, which is local. */
function isStranger(request: IncomingMessage, { isForThisMachine, addressOf }: Reach): boolean {
  if (!isForThisMachine || !isAtOwnServer(request)) return false
  const address = addressOf(request)
  return address !== '' && !isLoopback(address)
}

/**
 * Excludes names below localhost: foreign content has such origins, on subdomains of the gateway.
 */
function isOfThisMachine(origin: string): boolean {
  if (!URL.canParse(origin)) return false
  const { hostname } = new URL(origin)
  return hostname === 'localhost' || hostname === '[::1]' || /^127(?:\.\d{1,3}){3}$/.test(hostname)
}
