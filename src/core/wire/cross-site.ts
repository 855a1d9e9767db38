// Detects requests from pages of other sites by `Sec-Fetch-Site`, which only browsers send.
import type { IncomingHttpHeaders } from 'node:http'

/** `same-site` is not trusted: foreign content has origins on subdomains of the gateway's host. */
export function isFromAnotherSite(headers: IncomingHttpHeaders): boolean {
  const site = headers['sec-fetch-site']
  return site === 'cross-site' || site === 'same-site'
}
