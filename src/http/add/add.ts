// POST /add. Checks the headers before reading a byte of the body; src/upload does the rest.

import { randomBytes } from 'node:crypto'
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http'
import { type Failure, isFailure, malformed } from '../../core/failure.ts'
import type { SchemaChecks } from '../../schemas/checks.ts'
import { maxPartsOf, type UploadKind } from '../../upload/ingest.ts'
import { type Uploader, withoutQuota } from '../../upload/quotas.ts'
import { aroundBytes, boundaryOf, tooLarge } from '../../upload/receive.ts'
import type { Added, AddOptions, Uploads } from '../../upload/uploads.ts'
import type { Next, Route } from '../route.ts'
import { preflight } from '../wire/cors.ts'
import { type Exchange, noteToken } from '../wire/exchange.ts'
import type { Respond } from '../wire/problem.ts'
import { type Forwarded, HttpRefusal, methodRefused, type RequestContext, readContext } from '../wire/request.ts'
import { createTokens, type Reach, refuseForeignPage, refuseStranger, type Tokens } from './upload-auth.ts'

export type AddDeps = {
  readonly uploads: Pick<Uploads, 'maxBytes' | 'kinds' | 'enter' | 'receive'>
  readonly tokens: Tokens
  readonly reach: Reach
  readonly schemas: SchemaChecks
  readonly respond: Respond
  /** The client to which the limits charge the upload. */
  readonly clientOf: (request: IncomingMessage) => Uploader
}

const methods = 'POST, OPTIONS'

export function createAddRoute(deps: AddDeps): Route {
  const via = createVia()
  const answer: Route['answer'] = (context, next) => {
    const { request, response } = context
    if (request.method === 'OPTIONS') return deps.respond.send(context, preflight(request, methods))
    if (request.method !== 'POST') {
      const failure = methodRefused('files are uploaded with POST', methods)
      return void deps.respond.failed(request, response, failure, { accept: readsJson(request) })
    }
    answerAdd(context, { ...deps, via }).catch(next)
  }
  const costs: Route['costs'] = ({ request }) => (request.method === 'POST' ? 'uploads' : undefined)
  return { name: 'add', at: /^\/add$/, answer, costs }
}

async function answerAdd(context: RequestContext, deps: AddDeps & { readonly via: Via }): Promise<void> {
  const { request, response } = context
  const { schemas, respond } = deps
  try {
    const { schema, ...wanted } = checkHeaders(context, deps)
    const via = deps.via(request.headers)
    const check = schema === undefined ? undefined : schemas.check(schema)
    const added = await receiveUpload(context, deps, { ...wanted, check, via })
    if (response.destroyed) return
    const body = `${JSON.stringify({ cids: added.map(({ cid }) => `/ipfs/${cid}`) })}\n`
    const headers = { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' }
    respond.send(context, { body, headers })
  } catch (error) {
    const headers = isFailure(error, 'refused') ? { 'WWW-Authenticate': challenge(error) } : undefined
    respond.failed(request, response, error, { headers, accept: readsJson(request) })
  }
}

/** Receives the body of a request that may upload, once there is a slot for it. */
export async function receiveUpload(
  { request, response, signal }: Pick<RequestContext, 'request' | 'response' | 'signal'>,
  { uploads, clientOf }: Pick<AddDeps, 'uploads' | 'clientOf'>,
  options: Omit<AddOptions, 'slot'>,
): Promise<Added[]> {
  boundaryOf(request.headers['content-type'])
  const minBytes = Number(request.headers['content-length'] ?? 0) - aroundBytes(maxPartsOf(options.kind))
  if (minBytes > uploads.maxBytes) throw tooLarge(uploads.maxBytes)
  const who = clientOf(request)
  const slot = await uploads.enter(options.isOnlyHashed ? withoutQuota(who) : who, signal, minBytes)
  try {
    // The client starts to send the body only now. One of HTTP/1.0 cannot read this (RFC 9110
    // §10.1.1).
    if (request.headers.expect !== undefined && request.httpVersion !== '1.0') response.writeContinue()
    return await uploads.receive(request, { ...options, slot })
  } finally {
    slot.leave()
  }
}

/**
 * In thin mode the other service refused, and no token of this gateway would help: the realm names
 * that service (RFC 9110 §11.5).
 */
const challenge = ({ facts: { service } }: Failure): string =>
  typeof service === 'string' ? `Bearer realm="${service}"` : 'Bearer'

/**
 * Uploads come from programs, so in every mode the response is JSON unless the client asks for a
 * page.
 */
const readsJson = ({ headers }: IncomingMessage): string => headers.accept ?? 'application/json'

/** The checks of origin, token, coding and query. Throws a Failure. */
function checkHeaders({ request, response, target }: RequestContext, deps: AddDeps): AddQuery {
  const { uploads, tokens, reach, schemas } = deps
  refuseStranger(request, reach)
  refuseForeignPage(request, reach)
  noteToken(response, tokens.check(request.headers))
  const encoding = request.headers['content-encoding'] ?? 'identity'
  if (encoding.toLowerCase() !== 'identity')
    throw malformed('an upload with a Content-Encoding is not supported: send the bytes unencoded')
  return readAddQuery(target.query, { schemas: schemas.names, kinds: uploads.kinds })
}

type AddQuery = {
  readonly kind: UploadKind
  /** The name of the schema that each file is validated against. */
  readonly schema: string | undefined
  /** Computes the CIDs without storing anything. */
  readonly isOnlyHashed: boolean
  /** The name of the pins. */
  readonly name: string | undefined
}

/** The limit of Kubo and of the Pinning Service API. */
const maxNameBytes = 255

/** The name of a pin; throws for one that no list can show. */
export function pinName(given: string | undefined): string | undefined {
  const name = given ?? ''
  if (Buffer.byteLength(name) > maxNameBytes) throw malformed(`name is longer than ${maxNameBytes} bytes`)
  if (/\p{Cc}/u.test(name) || !name.isWellFormed()) throw malformed('name has characters that cannot be shown')
  return name === '' ? undefined : name
}

const options: readonly string[] = ['wrap', 'only-hash', 'format', 'schema', 'name']

function readAddQuery(
  query: URLSearchParams,
  known: { readonly schemas: readonly string[]; readonly kinds: readonly UploadKind[] },
): AddQuery {
  const given = optionsIn(query, {}, options)
  const kind = kindOf(given)
  if (!known.kinds.includes(kind))
    throw malformed(
      'format=car is not supported in thin mode: this gateway forwards files and folders only; send the CAR to the service itself',
    )
  const schema = given.get('schema')
  const isOnlyHashed = isOn(given, 'only-hash')
  const name = pinName(given.get('name'))
  if (schema === undefined) return { kind, schema, isOnlyHashed, name }
  if (!known.schemas.includes(schema))
    throw malformed(`unknown schema ${JSON.stringify(schema)}; known are ${known.schemas.join(', ')}`)
  if (kind !== 'files') throw malformed('a schema is for documents: leave out schema, or wrap and format')
  return { kind, schema, isOnlyHashed, name }
}

function kindOf(given: GivenOptions): UploadKind {
  const isWrapped = isOn(given, 'wrap')
  const format = given.get('format')
  if (format === undefined) return isWrapped ? 'directory' : 'files'
  if (format !== 'car') throw malformed(`format=${format} is not supported: it is car, or left out for files`)
  if (isWrapped) throw malformed('wrap is for files, and a CAR has its directories in itself: leave out wrap or format')
  return 'cars'
}

/** The options of a request by name. */
export type GivenOptions = ReadonlyMap<string, string>

/** Parses options by name or alias, each once. `known`: the others are ignored. Default: all. */
export function optionsIn(
  query: URLSearchParams,
  aliases: Readonly<Record<string, string>> = {},
  known?: readonly string[],
): GivenOptions {
  const given = new Map<string, string>()
  for (const [key, value] of query) {
    const name = Object.hasOwn(aliases, key) ? (aliases[key] as string) : key
    if (lists.includes(name) || known?.includes(name) === false) continue
    if ((given.get(name) ?? value) !== value) throw malformed(`${name} is given twice, with different values`)
    given.set(name, value)
  }
  return given
}

/** Options of Kubo that may be repeated. */
const lists: readonly string[] = ['arg', 'ignore']

/** Like Go's ParseBool; a flag without a value is on. */
export function isOn(given: GivenOptions, name: string, otherwise = false): boolean {
  const value = given.get(name)
  if (value === undefined) return otherwise
  const spelled = value.toLowerCase()
  if (['', 'true', 't', '1'].includes(spelled)) return true
  if (['false', 'f', '0'].includes(spelled)) return false
  throw malformed(`${name}=${value} is not true or false`)
}

/** Returns the list to forward, with this gateway appended. Throws if it is in the list already. */
export type Via = (headers: IncomingHttpHeaders) => string

/**
 * Each instance has its own name, because several instances that forward in a row are not a loop.
 */
function createVia(self = `cidgate-${randomBytes(8).toString('hex')}`): Via {
  return (headers) => {
    const before = [headers['cdn-loop'] ?? []].flat().join(', ')
    const names = before.split(',').map((one) => one.split(';')[0]?.trim())
    if (names.includes(self)) throw loop()
    return before === '' ? self : `${before}, ${self}`
  }
}

const loop = (): Failure =>
  new HttpRefusal(
    'unsupported',
    'upload loop (CDN-Loop): this upload was forwarded from here and came back; stop one of the gateways that forward to each other',
    { source: 'client', status: 508 },
  )

// Uploads on the admin address, for the dashboard: the same route and intake as on the public
// address, without its token and cross-origin check, because the admin address has stricter ones.

type AdminAddDeps = Pick<AddDeps, 'uploads' | 'schemas' | 'respond' | 'clientOf'> & {
  readonly forwarded: Forwarded
  /** Records the request for metrics and the access log. */
  readonly watch: (request: IncomingMessage, response: ServerResponse) => Exchange
}

/** Counted and logged like a request on the public address. */
export function createAdminAdd(deps: AdminAddDeps) {
  const { uploads, forwarded, watch } = deps
  const route = createAddRoute({
    ...deps,
    tokens: createTokens('open'),
    reach: { isForThisMachine: false, addressOf: forwarded.addressOf },
  })
  return {
    maxBytes: uploads.maxBytes,
    handle(request: IncomingMessage, response: ServerResponse, next: Next): void {
      watch(request, response).route = route.name
      route.answer(readContext(request, response), next)
    },
  }
}
