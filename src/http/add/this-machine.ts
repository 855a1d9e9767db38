// Where uploads need no token they are for this machine: a client that a proxy tells to be elsewhere is refused. So is a page of a
// stranger, open in a browser here, since it reaches addresses that the stranger does not; Kubo's door refuses it as well.
import type { IncomingMessage } from 'node:http'
import { isFromAnotherSite } from '../../core/wire/cross-site.ts'
import { isLoopback } from '../../core/wire/loopback.ts'
import { isAtOwnServer } from '../wire/own-server.ts'
import { HttpRefusal } from '../wire/refusal.ts'

export type Reach = {
  /** Uploads need no token, and nothing says that they are open to all. */
  readonly isForThisMachine: boolean
  /** Of the client, as proxies that are trusted tell it. */
  readonly addressOf: (request: IncomingMessage) => string
}

/** Throws for an upload of a client of another machine. A program that opens its own address decides itself which clients reach it. */
export function refuseStranger(request: IncomingMessage, reach: Reach): void {
  if (!isStranger(request, reach)) return
  const said =
    'uploads without a token are for the machine of the gateway alone; the operator can set upload.auth to tokens, or to open'
  throw new HttpRefusal('refused', said, { source: 'client', status: 403 })
}

/** Throws for an upload of a foreign page. A page of this machine (a development server, the first page) may upload. */
export function refuseForeignPage(request: IncomingMessage, reach: Reach): void {
  const { origin } = request.headers
  if (!isForeignPage(request, origin, reach)) return
  const said = `a page of ${origin === undefined ? 'another site' : JSON.stringify(origin)} may not upload here without a token; the operator can set upload.auth to open, or to tokens`
  throw new HttpRefusal('refused', said, { source: 'client', status: 403 })
}

/** Whether an upload of this client would be taken, from a page of `origin` if it is one. */
export const mayUpload = (request: IncomingMessage, origin: string | undefined, reach: Reach): boolean =>
  !isStranger(request, reach) && !isForeignPage(request, origin, reach)

const isForeignPage = (request: IncomingMessage, origin: string | undefined, reach: Reach): boolean =>
  reach.isForThisMachine &&
  (origin === undefined ? isFromAnotherSite(request.headers) : !isOfThisMachine(origin)) &&
  isLoopback(reach.addressOf(request))

/** A socket without an address is one of this machine. */
function isStranger(request: IncomingMessage, { isForThisMachine, addressOf }: Reach): boolean {
  if (!isForThisMachine || !isAtOwnServer(request)) return false
  const address = addressOf(request)
  return address !== '' && !isLoopback(address)
}

/** Not names below localhost: content of strangers has such origins, under a gateway's own subdomains. */
function isOfThisMachine(origin: string): boolean {
  if (!URL.canParse(origin)) return false
  const { hostname } = new URL(origin)
  return hostname === 'localhost' || hostname === '[::1]' || /^127(?:\.\d{1,3}){3}$/.test(hostname)
}
