// Decides which redirects are followed: to the same host, and, if the operator allows it, to the
// subdomain of that host which the path gateway specification defines for the same content.
import { parseCid } from '../../src/core/cid.ts'

/** `none`: for a gateway that a router named. */
export type Redirects = 'site' | 'subdomains' | 'none'

/** The maximum number of redirects: from http to https, and from a path to a subdomain. */
export const maxHops: Readonly<Record<Redirects, number>> = { none: 0, site: 1, subdomains: 2 }

/** `site`: the requested URL at the operator's host. `from`: the URL of the response. */
export function followed(
  location: string | undefined,
  { site, from, redirects }: { readonly site: URL; readonly from: URL; readonly redirects: Redirects },
): URL | undefined {
  if (redirects === 'none' || location === undefined || !URL.canParse(location, from.href)) return undefined
  const to = new URL(location, from)
  const isSafe = to.protocol === from.protocol || to.protocol === 'https:'
  // Another port is another service, which may belong to another party or be internal.
  if (!isSafe || to.port !== from.port || to.username !== '' || to.password !== '') return undefined
  const isSameHost = bare(to.hostname) === bare(from.hostname)
  return isSameHost || (redirects === 'subdomains' && isOwnSubdomain(to, site)) ? to : undefined
}

/**
 * Accepts `<cid>.ipfs.<host>` for `<host>/ipfs/<cid>`, and the same for keys. Any other subdomain
 * may belong to another party.
 */
export function isOwnSubdomain(to: URL, site: URL): boolean {
  const [, space = '', name = ''] = /.*\/(ipfs|ipns)\/([^/]+)/.exec(site.pathname) ?? []
  const [label = '', ...rest] = to.hostname.split('.')
  if (rest.join('.') !== `${space}.${bare(site.hostname)}`) return false
  const [asked, answered] = [parseCid(decodeURIComponent(name)), parseCid(label)]
  return (
    asked !== undefined &&
    answered !== undefined &&
    Buffer.compare(asked.multihash.bytes, answered.multihash.bytes) === 0
  )
}

const bare = (host: string): string => host.replace(/^www\./, '')
