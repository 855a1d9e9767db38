// Restricts uploads without a token to this machine: refuses a client that a proxy reports to be
// elsewhere. Also refuses foreign web pages, open in a local browser, since they reach addresses
// that their authors cannot; Kubo's RPC refuses them too.
import type { IncomingMessage } from 'node:http'
import { isFromAnotherSite, isLoopback } from '../../core/wire/http.ts'
import { isAtOwnServer } from '../wire/own-server.ts'
import { HttpRefusal } from '../wire/refusal.ts'

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
    'uploads without a token are for the machine of the gateway alone; the operator can set upload.auth to tokens, or to open'
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
