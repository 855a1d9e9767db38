// Maps a request to content by its host, following the subdomain and DNSLink gateway
// specifications: https://<cid>.ipfs.<gateway>/<path> is /ipfs/<cid>/<path> on its own origin.

import type { IncomingMessage } from 'node:http'
import { isIP } from 'node:net'
import { base32 } from 'multiformats/bases/base32'
import { base36 } from 'multiformats/bases/base36'
import { CID } from 'multiformats/cid'
import { codec, parseCid, parseKey } from '../core/cid.ts'
import { Failure, malformed } from '../core/failure.ts'
import { headerSafe } from '../core/wire/http.ts'
import { baseOf, type Forwarded, type RequestHead, type RequestTarget } from './wire/request.ts'

export type HostOptions = {
  /** Content gets its own origin on a subdomain of this host, and shared paths redirect there. */
  readonly subdomains: boolean
  /** Only responses that a client can verify itself. */
  readonly trustless: boolean
  /** Only blocks and CARs that the tiers hold. Default: the setting of the gateway. */
  readonly provider?: boolean | undefined
}

/** The content that a request names, by its host and path. */
export type Located =
  /** The path alone decides. */
  | { readonly kind: 'by-path' }
  | { readonly kind: 'place'; readonly place: ContentPlace }
  | { readonly kind: 'moved'; readonly location: string }
  /** The place, if the host has a DNSLink. */
  | { readonly kind: 'site'; readonly name: string; readonly place: ContentPlace }

export interface Hosts {
  /** Throws a Failure for content that this host does not serve. */
  locate(request: IncomingMessage, target: RequestTarget): Located
  /** Looks up the DNSLink of a site. */
  hasLink(name: string, signal: AbortSignal): Promise<boolean>
  /** The key in the response cache; undefined if this host is not cached. */
  keyOf(request: RequestHead): string | undefined
  /** True if this gateway serves the host, also through CONNECT. */
  serves(host: string): boolean
}

const byPath: Located = { kind: 'by-path' }

const inert: Hosts = {
  locate: () => byPath,
  hasLink: async () => false,
  keyOf: (request) => request.url,
  serves: () => false,
}

export function createHosts(options: {
  readonly table: Readonly<Record<string, HostOptions>>
  /** The default of `provider` for every host. */
  readonly provider?: boolean
  /** Looks up the DNSLink of a domain; undefined if only configured hosts are served. */
  readonly hasLink?: ((domain: string, signal: AbortSignal) => Promise<boolean>) | undefined
  readonly forwarded: Forwarded
}): Hosts {
  const table = new Map(Object.entries(options.table).map(([name, one]) => [name.toLowerCase(), one]))
  const { hasLink, forwarded, provider = false } = options
  if (table.size === 0 && !hasLink && !provider) return inert

  function hostOf(request: RequestHead): { host: string; name: string; port: string } {
    const given = forwarded.hostOf(request)
    const stripped = hostName(given)
    const port = /:\d{1,5}$/.exec(given)?.[0] ?? ''
    return { host: stripped + port, name: stripped.toLowerCase(), port }
  }

  const mayBeSite = (name: string): boolean =>
    hasLink !== undefined && !table.has(name) && isIP(name) === 0 && name.includes('.')

  function isProvider(name: string): boolean {
    const known = table.get(name)
    return known?.provider ?? (provider && !known?.subdomains && !under(name))
  }

  /**
   * The key is "url host" for a host with its own origin. A URL contains no space, so keys of
   * different hosts never collide.
   */
  function keyFor(name: string, url: string): string | undefined {
    const part = under(name)
    if (part) return part.namespace === 'ipfs' ? `${url} ${name}` : undefined
    const { subdomains, trustless } = table.get(name) ?? {}
    return subdomains || trustless || isProvider(name) || mayBeSite(name) ? undefined : url
  }

  /** The label, namespace and gateway of a host such as `bafy….ipfs.example.org`. */
  function under(name: string): { label: string; namespace: ContentPlace['namespace']; gateway: string } | undefined {
    // A DNSLink name may contain such a part itself: docs.ipfs.tech.ipns.example.org
    for (const form of [/^(.+?)\.(ipfs|ipns)\.(.+)$/i, /^(.+)\.(ipfs|ipns)\.(.+)$/i]) {
      const [, label = '', namespace = '', gateway = ''] = form.exec(name) ?? []
      if (table.get(gateway.toLowerCase())?.subdomains) return { label, namespace: asNamespace(namespace), gateway }
    }
    return undefined
  }

  function siteOf(name: string, path: string): Located {
    if (!mayBeSite(name)) return byPath
    const place = ownPlace('ipns', `/ipns/${name}${path}`)
    return { kind: 'site', name, place }
  }

  return {
    hasLink: async (name, signal) => (await hasLink?.(name, signal)) ?? false,

    locate(request, target) {
      const { host, name, port } = hostOf(request)
      const known = table.get(name)
      const base = baseOf(request)
      const isContent = namespaceOf(target.path) !== undefined
      if (isProvider(name) && (isContent || (known?.provider && !isAbout(target.path))))
        return { kind: 'place', place: { ...trustlessPlace(target, base), provider: true } }
      if (known?.trustless) return { kind: 'place', place: trustlessPlace(target, base) }
      // A site on its own origin begins at the root.
      if (base !== '') return byPath
      // The configuration takes precedence over DNS, without a lookup.
      if (known) {
        const label = known.subdomains && isContent ? labelFor(target.path) : undefined
        if (!label) return byPath
        return { kind: 'moved', location: `${forwarded.schemeOf(request)}://${label}.${host}${restOf(target)}` }
      }
      const part = under(hostName(host))
      if (!part) return siteOf(name, target.path)
      const { namespace, gateway } = part
      const label = canonicalLabel(part)
      if (label.moved) {
        const to = `${forwarded.schemeOf(request)}://${label.text}.${namespace}.${gateway}${port}`
        return { kind: 'moved', location: to + headerSafe(request.url ?? '/') }
      }
      const path = `/${namespace}/${label.text}${target.path}`
      const cacheKey = keyFor(name, request.url ?? '')
      return { kind: 'place', place: { ...ownPlace(namespace, path, cacheKey), gateway: gateway + port } }
    },

    keyOf: (request) => keyFor(hostOf(request).name, request.url ?? ''),

    serves(host) {
      const name = hostName(host).toLowerCase()
      return table.has(name) || under(name) !== undefined
    },
  }
}

/** True if the host decides about the request. */
export function isByHost(hosts: Pick<Hosts, 'locate'>, request: IncomingMessage, target: RequestTarget): boolean {
  try {
    return hosts.locate(request, target).kind !== 'by-path'
  } catch {
    return true
  }
}

/** Routes about this gateway, served on every host. */
const isAbout = (path: string): boolean => path.startsWith('/routing/v1/') || path.startsWith('/ipni/v1/')

const asNamespace = (text: string): ContentPlace['namespace'] => (text.toLowerCase() === 'ipns' ? 'ipns' : 'ipfs')

/** Strips the port and the trailing dot of a fully qualified name. */
const hostName = (host: string): string => host.replace(/:\d{0,5}$/, '').replace(/\.$/, '')

function trustlessPlace(target: RequestTarget, base: string): ContentPlace {
  const place = sharedPlace(target, base, undefined)
  if (place) return { ...place, trustless: true }
  throw new Failure(
    'path-not-found',
    'no such path: this host has only /ipfs/<cid> and /ipns/<key>, as raw, car or ipns-record',
    {
      source: 'client',
    },
  )
}

/**
 * `<label>.<namespace>` of a shared path. Undefined for anything except a CID, key or domain: the
 * response to the path reports the error.
 */
function labelFor(path: string): string | undefined {
  const [, namespace, root = ''] = path.split('/')
  if (namespace === 'ipfs') {
    const cid = parseCid(root)
    return cid && `${labelOf(cid, 'ipfs')}.ipfs`
  }
  const key = parseKey(root)
  if (key) return `${labelOf(key, 'ipns')}.ipns`
  if (!/^[a-z0-9_-]+(\.[a-z0-9_-]+)+$/i.test(root)) return undefined
  const label = inlined(root.toLowerCase())
  return `${label.length <= maxChars ? label : root.toLowerCase()}.ipns`
}

function canonicalLabel({ label, namespace }: { label: string; namespace: ContentPlace['namespace'] }): {
  text: string
  moved: boolean
} {
  const cid = namespace === 'ipfs' ? parseCid(label) : parseKey(label)
  if (cid) {
    const text = labelOf(cid, namespace)
    return { text, moved: text !== label }
  }
  if (namespace === 'ipns') {
    const name = label.toLowerCase()
    return { text: name.includes('.') ? name : uninlined(name), moved: false }
  }
  throw malformed(`${JSON.stringify(label)} is not a CID; expected <cid>.ipfs.<host>`)
}

function restOf({ path, search }: RequestTarget): string {
  const rest = path.split('/').slice(3).join('/')
  return headerSafe(`/${rest}${search === '' ? '' : `?${search}`}`)
}

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

const ownPlace = (namespace: ContentPlace['namespace'], path: string, cacheKey?: string): ContentPlace => ({
  namespace,
  path,
  base: '',
  own: true,
  trustless: false,
  cacheKey,
})

/** A content path on a shared host; undefined for any other path. */
export function sharedPlace(target: RequestTarget, base: string, key: string | undefined): ContentPlace | undefined {
  const namespace = namespaceOf(target.path)
  // Names change, so their responses are never in the response cache.
  const cacheKey = namespace === 'ipfs' ? key : undefined
  return namespace && { namespace, path: target.path, base, own: false, trustless: false, cacheKey }
}

function namespaceOf(path: string): ContentPlace['namespace'] | undefined {
  if (path.startsWith('/ipfs/')) return 'ipfs'
  return path.startsWith('/ipns/') ? 'ipns' : undefined
}

/** The path that was probably meant; undefined if it needs no correction. */
export function correctedPath({ path, query, search }: RequestTarget): string | undefined {
  const twice = /^\/ip[fn]s(\/ip[fn]s\/.+)$/.exec(path)?.[1]
  if (twice !== undefined) return search === '' ? twice : `${twice}?${search}`
  if (path !== '/ipfs/' && path !== '/ipns/') return undefined
  const meant = contentPathIn((query.get('uri') ?? '').trim())
  return meant && headerSafe(meant)
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

const maxChars = 63

/**
 * Encodes in base32, or in base36 if that is too long; IPNS keys always in base36. Throws if
 * neither fits.
 */
export function labelOf(cid: CID, namespace: 'ipfs' | 'ipns'): string {
  const code = namespace === 'ipns' ? codec.libp2pKey : cid.code
  const canonical = cid.version === 1 && cid.code === code ? cid : CID.createV1(code, cid.multihash)
  if (namespace === 'ipfs') {
    const text = canonical.toString(base32)
    if (text.length <= maxChars) return text
  }
  const text = canonical.toString(base36)
  if (text.length <= maxChars) return text
  throw malformed(`CID incompatible with DNS label length limit of ${maxChars}: ${cid}`)
}

/**
 * Inlines `my.v-long.example.com` as `my-v--long-example-com`, so that one wildcard certificate
 * covers every name.
 */
export const inlined = (domain: string): string => domain.replaceAll('-', '--').replaceAll('.', '-')

/** Reverses `inlined`: `--` is a dash, `-` a dot. */
export const uninlined = (label: string): string => label.replace(/--|-/g, (dashes) => (dashes === '--' ? '-' : '.'))
