// Uploads on the admin address, for the dashboard: the same route and intake as on the public
// address, without its token and cross-origin check, because the admin address has stricter ones.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { createRequestIds, type Forwarded, requestIdHeader } from '../wire/client.ts'
import { corsHeaders } from '../wire/cors.ts'
import type { Exchange } from '../wire/exchange.ts'
import { readContext } from '../wire/request.ts'
import { type AddDeps, createAddRoute, type Next } from './add.ts'
import { createTokens } from './upload-auth.ts'

export type AdminAdd = {
  readonly maxBytes: number
  readonly handle: (request: IncomingMessage, response: ServerResponse, next: Next) => void
}

type AdminAddDeps = Pick<AddDeps, 'uploads' | 'schemas' | 'respond' | 'clientOf'> & {
  readonly forwarded: Forwarded
  /** Records the request for metrics and the access log. */
  readonly watch: (request: IncomingMessage, response: ServerResponse) => Exchange
}

/** Counted and logged like a request on the public address. */
export function createAdminAdd(deps: AdminAddDeps): AdminAdd {
  const { uploads, forwarded, watch } = deps
  const route = createAddRoute({
    ...deps,
    tokens: createTokens('open'),
    reach: { isForThisMachine: false, addressOf: forwarded.addressOf },
  })
  const requestIds = createRequestIds(forwarded)
  return {
    maxBytes: uploads.maxBytes,
    handle(request, response, next) {
      watch(request, response).route = route.name
      keepFromOtherOrigins(response)
      response.setHeader(requestIdHeader, requestIds.next(request))
      route.answer(readContext(request, response), next)
    },
  }
}

/** The route allows all origins to read its responses; the admin address allows none. */
function keepFromOtherOrigins(response: ServerResponse): void {
  const writeHead = response.writeHead.bind(response)
  response.writeHead = ((...head: unknown[]) => {
    for (const [name] of corsHeaders) response.removeHeader(name)
    return Reflect.apply(writeHead, response, head.map(withoutCors))
  }) as typeof response.writeHead
}

/** writeHead accepts headers as a flat list of names and values, or as an object. */
function withoutCors(part: unknown): unknown {
  if (Array.isArray(part)) return part.filter((_one, index) => !isCors(part[index - (index % 2)]))
  if (typeof part !== 'object' || part === null) return part
  return Object.fromEntries(Object.entries(part).filter(([name]) => !isCors(name)))
}

const corsNames: ReadonlySet<string> = new Set(corsHeaders.map(([name]) => name.toLowerCase()))
const isCors = (name: unknown): boolean => corsNames.has(String(name).toLowerCase())
