// The content that a request asks for, whichever address it came by: a path on the shared origin, or a site on its own
// origin.
import type { RequestTarget } from '../wire/request-target.ts'

export type ContentPlace = {
  readonly namespace: 'ipfs' | 'ipns'
  /** `/ipfs/<cid>[/…]` or `/ipns/<name>[/…]`, still encoded: the same for every address of the same content. */
  readonly path: string
  /** The path under which the host application mounted the routes; empty at the root. */
  readonly base: string
  /** This origin serves this content alone: its pages may run scripts, and its `_redirects` apply. */
  readonly own: boolean
  /** The host that serves the shared paths of this gateway, if it is not the one of the request. */
  readonly gateway?: string | undefined
  /** This host gives no deserialised answers. */
  readonly trustless: boolean
  /** This host answers blocks and CARs that a tier holds, at once, and asks nobody for others. */
  readonly provider?: boolean
  /** The key in the response cache; undefined: never kept there. */
  readonly cacheKey: string | undefined
}

/** A path on a shared host. Undefined: it is no content path. */
export function sharedPlace(target: RequestTarget, base: string, key: string | undefined): ContentPlace | undefined {
  const namespace = namespaceOf(target.path)
  // Names change: their answers are never kept in the response cache.
  const cacheKey = namespace === 'ipfs' ? key : undefined
  return namespace && { namespace, path: target.path, base, own: false, trustless: false, cacheKey }
}

export function namespaceOf(path: string): ContentPlace['namespace'] | undefined {
  if (path.startsWith('/ipfs/')) return 'ipfs'
  return path.startsWith('/ipns/') ? 'ipns' : undefined
}
