// What a browser says of the page that made a request: other clients send no `Sec-Fetch-Site`.
import type { IncomingHttpHeaders } from 'node:http'

/** Of the same site is not enough: content of strangers has origins below the host of the gateway. */
export function isFromAnotherSite(headers: IncomingHttpHeaders): boolean {
  const site = headers['sec-fetch-site']
  return site === 'cross-site' || site === 'same-site'
}
