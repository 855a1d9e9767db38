// The gateway put together, and the entry of the library.
//
// A GET: http/lane answers from hot, or http/app lets the request in and http/answer makes the answer. content/resolve
// walks the path block by block; each block comes from retrieval/retrieval: the tier stack, or one shared flight
// (block-flight, dag-flight) that races the upstreams in the order that retrieval/order gives and lets only proved bytes
// through, into the answer and the tiers. What fails leaves as a Failure and becomes a status in http/problem. Whatever
// happened is written down once, in the request's Account.
//
// A POST: http/add looks at size and token, upload/receive takes the body apart as it streams, upload/import makes blocks
// of it into a spool, upload/confirm asks the providers side by side and writes down in the journal where each stands; what
// is held goes into the tiers (upload/fill) before the answer is given.
import type { RequestListener } from 'node:http'
import type { Router } from 'express'
import { type Clock, systemClock } from './clock.ts'
import { type Config, parseConfig } from './config/load.ts'
import { createLog, type Log } from './observe/log.ts'
import { createSpools, spoolFolder } from './upload/spool.ts'
import { wireAdmin } from './wiring/admin.ts'
import { createParts, openLeft } from './wiring/backends.ts'
import { createClosers } from './wiring/closers.ts'
import { wireFront } from './wiring/front.ts'
import { wireReading } from './wiring/reading.ts'
import { wireTiers } from './wiring/tiers.ts'
import { wireUploads } from './wiring/uploads.ts'
import type { Whole } from './wiring/whole.ts'

export { type Config, loadConfig, parseConfig } from './config/load.ts'

export interface Gateway {
  /** Everything the public address answers, as a router that any Express application can mount at its root. */
  readonly router: Router
  /** The same with the fast lane in front, for a server of its own: `http.createServer(gateway.handler)`. */
  readonly handler: RequestListener
  /** Whether this host is served here as a site or gateway of its own: what a client may CONNECT to. */
  serves(host: string): boolean
  /** Health, readiness and metrics: for an address of their own. */
  readonly admin: RequestListener
  /** Says in /readyz that it is about to close, so that nobody is sent here any more. */
  drain(): void
  close(): Promise<void>
}

/** `clock`: for tests that want time to pass. */
export type GatewayOptions = { readonly log?: Log; readonly clock?: Clock }

/** `input`: what `parseConfig` or `loadConfig` gave, or what a configuration file would say, as an object. */
export async function createGateway(
  input: Config | Record<string, unknown> = {},
  options: GatewayOptions = {},
): Promise<Gateway> {
  const config = isParsed(input) ? input : parseConfig(input)
  const log = options.log ?? createLog(config.log.level)
  const clock = options.clock ?? systemClock
  const closers = createClosers()
  try {
    const parts = await putTogether({ config, log, clock, onClose: closers.add })
    return { ...parts, close: closers.close }
  } catch (error) {
    // A configuration that is refused leaves nothing behind that goes on working.
    await closers.close().catch((cause: unknown) => log('error', 'gateway.close', { error: String(cause) }))
    throw error
  }
}

async function putTogether(whole: Whole): Promise<Omit<Gateway, 'close'>> {
  const { config, log, onClose } = whole
  const { providers, tiers: bare, members } = createParts(config, whole)
  onClose(() => Promise.all(members.map(({ upstream }) => upstream.close())))
  onClose(() => Promise.all(providers.map((provider) => provider.close())))
  const left = await openLeft(config, whole)
  onClose(() => Promise.all(left.map((provider) => provider.close())))
  const spools = createSpools(spoolFolder(config.data))
  const tiers = wireTiers(whole, bare, { providers, left, spools })
  const reading = await wireReading(whole, { stack: tiers.stack, members })
  const onError = (error: unknown) =>
    log('error', 'request.broke', { error: error instanceof Error ? error.stack : String(error) })
  const writing = wireUploads(whole, { providers, spools, reading, onError })
  const front = wireFront(whole, reading, { routes: writing.routes, onError })
  const { router, handler, serves } = front
  const admin = wireAdmin(whole, { providers, tiers, reading, writing, front })
  return { router, handler, serves, admin: admin.handler, drain: admin.drain }
}

const isParsed = (input: object): input is Config => Object.isFrozen(input)
