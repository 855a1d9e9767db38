// A page of a stranger, open in a browser on this machine, reaches addresses that the stranger does not. Where uploads need no token
// and are meant for this machine, such a page is refused, as Kubo's door refuses it.
import type { IncomingMessage } from 'node:http'
import { HttpRefusal } from '../wire/refusal.ts'

export type PageRules = {
  /** Uploads need no token, and nothing says that they are open to all. */
  readonly isForThisMachine: boolean
  /** Of the client, as proxies that are trusted tell it. */
  readonly addressOf: (request: IncomingMessage) => string
}

/** Throws for an upload of a foreign page. A page of this machine (a development server, the first page) may upload. */
export function refuseForeignPage(request: IncomingMessage, { isForThisMachine, addressOf }: PageRules): void {
  const { origin } = request.headers
  if (!isForThisMachine || origin === undefined || isOfThisMachine(origin) || !isLoopback(addressOf(request))) return
  const said = `a page of ${JSON.stringify(origin)} may not upload here without a token; the operator can set upload.auth to open, or to tokens`
  throw new HttpRefusal('refused', said, { source: 'client', status: 403 })
}

/** Not names below localhost: content of strangers has such origins, under a gateway's own subdomains. */
function isOfThisMachine(origin: string): boolean {
  if (!URL.canParse(origin)) return false
  const { hostname } = new URL(origin)
  return hostname === 'localhost' || hostname === '[::1]' || /^127(?:\.\d{1,3}){3}$/.test(hostname)
}

const isLoopback = (address: string): boolean => /^(?:::ffff:)?127\.|^::1$/.test(address)
