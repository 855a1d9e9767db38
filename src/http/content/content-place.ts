// What a request is about, whatever address it came by: a path on the shared origin, or a site on an origin of its own.
import type { RequestTarget } from '../wire/request-target.ts'

export type ContentPlace = {
  readonly namespace: 'ipfs' | 'ipns'
  /** `/ipfs/<cid>[/…]` or `/ipns/<name>[/…]`, still encoded: the same for one thing by whatever address it is asked. */
  readonly path: string
  /** What stands before the path in an address here, where the routes are mounted below the root. */
  readonly base: string
  /** Nothing but this content is served under this origin: its pages may run, and its `_redirects` hold. */
  readonly own: boolean
  /** The host under which the shared paths of the same gateway are, where that is another one than was asked. */
  readonly gateway?: string | undefined
  /** Deserialised answers are not given here. */
  readonly trustless: boolean
  /** The key of a small answer in `hot`; undefined: never kept there. */
  readonly cacheKey: string | undefined
}

/** A path as every host answers it that is nobody's own. Undefined: no content is at such a path. */
export function sharedPlace(target: RequestTarget, base: string, key: string | undefined): ContentPlace | undefined {
  const namespace = namespaceOf(target.path)
  // What a name points at changes: never kept ready.
  const cacheKey = namespace === 'ipfs' ? key : undefined
  return namespace && { namespace, path: target.path, base, own: false, trustless: false, cacheKey }
}

export function namespaceOf(path: string): ContentPlace['namespace'] | undefined {
  if (path.startsWith('/ipfs/')) return 'ipfs'
  return path.startsWith('/ipns/') ? 'ipns' : undefined
}
