// Access control of the admin address. A web page can send requests to addresses that only its
// visitor reaches, and by pointing a name of its own there (DNS rebinding) it can read the
// responses: so Host and Origin are checked. A client on another machine needs a token to read or
// change uploads.
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { isIP } from 'node:net'
import type { NextFunction, Request, Response } from 'express'
import { isFromAnotherSite, isHost, isLoopback, isUnixPeer } from '../core/wire/http.ts'

export type AdminAccess = {
  /** Names of the admin address, in addition to IP addresses and names that no stranger can own. */
  readonly hosts: readonly string[]
  readonly tokens: readonly string[]
}

type Refusal = { readonly status: 400 | 401 | 403 | 417 | 505; readonly detail: string }

/**
 * Lets a client that is still sending a body read its response; otherwise the gateway would reset
 * the connection.
 */
export type LeaveBody = (request: IncomingMessage, response: ServerResponse) => void

const probes: ReadonlySet<string> = new Set(['/healthz', '/readyz'])

// Names that nobody can register: RFC 6761, RFC 6762, ICANN's private-use domain, and Kubernetes
// services.
const privateName = /^[^.]+$|\.(?:localhost|local|internal|svc)$/

/** The prefix of the files of the dashboard. */
export const pagePrefix = '/dashboard/'

/**
 * The files of the page reveal nothing about this gateway, so they need no token; the page then
 * asks for one.
 */
const isOfThePage = (path: string): boolean => path === '/' || path.startsWith(pagePrefix)

/** `leaveBody` is called before a refusal. */
export function createAdminAccess({ hosts, tokens }: AdminAccess, leaveBody: LeaveBody) {
  const names = new Set(hosts.map((name) => name.toLowerCase()))
  const known = tokens.map(digest)

  function hasToken({ headers }: IncomingMessage): boolean {
    const shown = /^Bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
    if (shown === undefined) return false
    let found = false
    for (const token of known) if (timingSafeEqual(token, digest(shown))) found = true
    return found
  }

  const isAllowedHost = (name: string): boolean => isIP(name) !== 0 || privateName.test(name) || names.has(name)

  function refusalOf(request: Request): Refusal | undefined {
    const host = request.headers.host ?? ''
    if (!isHost(host)) return { status: 400, detail: 'the Host header is not a host[:port]' }
    if (request.httpVersionMajor !== 1) return { status: 505, detail: 'the only version of HTTP here is 1.1' }
    if (!isOfHost(request.url, host)) return { status: 400, detail: 'the request target must be a path on this host' }
    const { expect } = request.headers
    if (expect !== undefined && !/(?:^|\W)100-continue(?:$|\W)/i.test(expect))
      return { status: 417, detail: 'the only Expect that is supported is 100-continue' }
    if (probes.has(request.path) || hasToken(request)) return undefined
    const name = nameIn(host)
    if (!isAllowedHost(name)) {
      const detail = `${JSON.stringify(name)} is not a name of this admin address; if it is one, name it in adminAccess.hosts`
      return { status: 403, detail }
    }
    // A link from another site may lead to the dashboard; the page's own requests are same-origin.
    if (isOfThePage(request.path) && request.method === 'GET') return undefined
    if (isFromElsewhere(request, host)) {
      return { status: 403, detail: 'a page of another origin may not ask the admin address' }
    }
    const isOpen = request.path === '/metrics' && known.length === 0
    if (isOpen || isOfThisMachine(request)) return undefined
    const how = known.length === 0 ? 'configure adminAccess.tokens and send one' : 'send one of adminAccess.tokens'
    return { status: 401, detail: `from another machine this needs a token: ${how} as Authorization: Bearer …` }
  }

  return (request: Request, response: Response, next: NextFunction): void => {
    const refusal = refusalOf(request)
    if (!refusal) return next()
    leaveBody(request, response)
    if (refusal.status === 401) response.set('WWW-Authenticate', 'Bearer')
    if (refusal.status === 417) response.set('Connection', 'close') // its body may come or not
    response.status(refusal.status).json(refusal)
  }
}

const digest = (token: string): Buffer => createHash('sha256').update(token).digest()

/**
 * An absolute URL in the request line overrides the Host header (RFC 9112 §3.2.2), which is the one
 * that is checked.
 */
function isOfHost(target: string, host: string): boolean {
  if (target.startsWith('/')) return true
  const [, authority] = /^https?:\/\/([^/?#\\]*)/i.exec(target) ?? []
  return authority !== undefined && authority.toLowerCase() === host.toLowerCase()
}

/** Strips the port, the brackets of IPv6, and the trailing dot. */
const nameIn = (host: string): string =>
  host
    .toLowerCase()
    .replace(/:\d*$/, '')
    .replace(/^\[(.*)\]$/, '$1')
    .replace(/\.$/, '')

/**
 * A request forwarded by a local proxy may come from anywhere; a direct client sends none of these
 * headers.
 */
const ofProxies: readonly string[] = [
  'forwarded',
  'via',
  'x-forwarded-for',
  'x-forwarded-host',
  'x-forwarded-proto',
  'x-real-ip',
]

const isOfThisMachine = ({ headers, socket }: IncomingMessage): boolean =>
  (isLoopback(socket.remoteAddress) || isUnixPeer(socket)) && !ofProxies.some((name) => name in headers)

/** A browser sets both headers; other clients send neither. */
function isFromElsewhere({ headers }: IncomingMessage, host: string): boolean {
  if (isFromAnotherSite(headers)) return true
  const { origin } = headers
  return origin !== undefined && origin.replace(/^https?:\/\//, '').toLowerCase() !== host.toLowerCase()
}
