// The location of requested content: a path on a shared host, or a site on its own origin.
import type { RequestTarget } from '../wire/request-target.ts'

export type ContentPlace = {
  readonly namespace: 'ipfs' | 'ipns'
  /**
   * `/ipfs/<cid>[/…]` or `/ipns/<name>[/…]`, still encoded: the same for every URL of the same
   * content.
   */
  readonly path: string
  /** The path under which the application mounted the routes; empty at the root. */
  readonly base: string
  /**
   * This origin serves only this content: its pages may run scripts, and its `_redirects` apply.
   */
  readonly own: boolean
  /** The host for the shared paths of this gateway, if it differs from the request's. */
  readonly gateway?: string | undefined
  /** This host serves no deserialized responses. */
  readonly trustless: boolean
  /** This host serves blocks and CARs from the tiers only, without asking upstreams. */
  readonly provider?: boolean
  /** The key in the response cache; undefined means not cacheable. */
  readonly cacheKey: string | undefined
}

/** A content path on a shared host; undefined for any other path. */
export function sharedPlace(target: RequestTarget, base: string, key: string | undefined): ContentPlace | undefined {
  const namespace = namespaceOf(target.path)
  // Names change, so their responses are never in the response cache.
  const cacheKey = namespace === 'ipfs' ? key : undefined
  return namespace && { namespace, path: target.path, base, own: false, trustless: false, cacheKey }
}

export function namespaceOf(path: string): ContentPlace['namespace'] | undefined {
  if (path.startsWith('/ipfs/')) return 'ipfs'
  return path.startsWith('/ipns/') ? 'ipns' : undefined
}
