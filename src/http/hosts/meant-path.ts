// Corrects mistyped content paths: a duplicate /ipfs, or the `uri` parameter that the form of the
// front page, or a browser that knows ipfs:// URLs, sends.
import { codec, parseCid, parseKey } from '../../core/cid.ts'
import type { RequestTarget } from '../wire/request-target.ts'

/** Undefined if the path needs no correction. */
export function meantPath({ path, query, search }: RequestTarget): string | undefined {
  const twice = /^\/ip[fn]s(\/ip[fn]s\/.+)$/.exec(path)?.[1]
  if (twice !== undefined) return search === '' ? twice : `${twice}?${search}`
  if (path !== '/ipfs/' && path !== '/ipns/') return undefined
  const meant = contentPathIn((query.get('uri') ?? '').trim())
  return meant?.replace(/[^\x21-\x7e]/gu, encodeURIComponent)
}

/**
 * Extracts the content path from pasted text: ipfs://…, /ipfs/…, a URL of any gateway, a bare CID,
 * a key, or a domain.
 */
function contentPathIn(text: string): string | undefined {
  const [, scheme, named] = /^(ipfs|ipns):\/\/([^/?#].*)$/i.exec(text) ?? []
  if (scheme !== undefined) return `/${scheme.toLowerCase()}/${named}`
  const [, path] = /^(?:https?:\/\/[^/]+)?\/?(ip[fn]s\/[^/].*)$/i.exec(text) ?? []
  if (path !== undefined) return `/${path.slice(0, 4).toLowerCase()}${path.slice(4)}`
  const [, label, namespace, rest = ''] = /^https?:\/\/([^./]+)\.(ipfs|ipns)\.[^/]+(\/.*)?$/i.exec(text) ?? []
  if (label !== undefined) return `/${namespace?.toLowerCase()}/${label}${rest}`
  const [root = ''] = text.split(/[/?#]/, 1)
  const cid = parseCid(root)
  if (cid && cid.code !== codec.libp2pKey) return `/ipfs/${text}`
  return parseKey(root) || /^[a-z0-9_-]+(\.[a-z0-9_-]+)+$/i.test(root) ? `/ipns/${text}` : undefined
}
