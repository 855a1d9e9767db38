// The server: two listening sockets in front of one gateway, which SIGHUP replaces. It starts in this order: open the
// sockets, make the gateway, answer the requests that waited; a second process on the address fails before it makes a
// gateway. It stops: tell it at /readyz, wait until load balancers have seen it, take no new connections, answer open
// requests, close the gateway.
import type { RequestListener, Server } from 'node:http'
import { ConfigError } from '../config/complaints.ts'
import type { Config } from '../config/load.ts'
import { type Address, addressText, isSameAddress, isUnix } from '../config/values/address.ts'
import { type Clock, systemClock } from '../core/clock.ts'
import { wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { processFolders } from '../data-folder/process.ts'
import { createStarting } from '../http/starting.ts'
import type { ParserRefusal } from '../http/wire/refusal.ts'
import { noteConnections } from '../wiring/admin.ts'
import { leftWith } from '../wiring/left.ts'
import { connectionLimits, tellFull } from './connection-limits.ts'
import { createConnections, descriptorsLeft } from './connections.ts'
import { createReload, type Replaceable } from './generations.ts'
import { createHttpServer, type HttpServerOptions, isAnswering } from './http-server.ts'
import { stop } from './stop.ts'
import { createLettingGo, type LettingGo } from './team/letting-go.ts'
import type { Processes } from './team/processes.ts'
import { type ListenerKind, listenOnUnix, makeWay, setMode } from './unix-socket.ts'

export type ServeOptions<Running extends Replaceable> = {
  readonly config: Config
  /** Makes and starts a gateway. `previous`: the gateway that it replaces. */
  readonly create: (config: Config, options: { readonly previous?: Running | undefined }) => Promise<Running>
  readonly log: Log
  readonly clock?: Clock | undefined
  /** Further processes, where the configuration wants some. */
  readonly processes?: Processes | undefined
}

export interface Serving {
  /** The real address: port 0 is replaced by the actual port. That of a unix socket is `unix:` and its path. */
  readonly listen: string
  readonly admin: string | undefined
  /** Reloads. False: refused (the log has the reasons), and the old gateway goes on. */
  reload(load: () => Config): Promise<boolean>
  close(): Promise<void>
}

export async function serve<Running extends Replaceable>(options: ServeOptions<Running>): Promise<Serving> {
  const { config: first, create, log, clock = systemClock, processes } = options
  const starting = createStarting({
    mode: first.responses.types,
    stalledMs: first.limits.stalled,
    most: first.limits.inFlight,
  })
  const answering: { listen: RequestListener; admin: RequestListener } = {
    listen: (request, response) => starting.hold(request, response, () => answering.listen(request, response)),
    admin: starting.admin,
  }
  let serves = (_host: string) => false
  let refused = (_refusal: ParserRefusal) => {}
  let config = first
  let closing = false
  /** Those that a reload left, while clients read from them. */
  const left = new Set<Server>()
  let lettingGo: LettingGo | undefined

  const front = (which: 'listen' | 'admin'): RequestListener =>
    function answer(request, response) {
      if (closing || (which === 'listen' && lettingGo?.next())) response.shouldKeepAlive = false
      answering[which](request, response)
    }
  // Looked at once: later the connections themselves are among those that are open.
  const descriptors = descriptorsLeft()
  const connections = createConnections(connectionLimits(first, descriptors), isAnswering, { clock })
  const handlers = {
    listen: front('listen'),
    admin: front('admin'),
    tunnels: (host: string) => serves(host),
    connections: tellFull(connections, log, clock),
    onRefused: (refusal: ParserRefusal) => refused(refusal),
  }

  let sockets = await openSockets(first, handlers)
  const running = await create(first, {}).catch(async (error: unknown) => {
    processes?.abandon()
    await cut(sockets)
    throw error
  })
  const gateways = createReload(running, log)
  serves = (host) => gateways.current.serves(host)
  refused = (refusal) => gateways.current.refused?.(refusal)
  Object.assign(answering, { listen: gateways.handler, admin: gateways.admin })
  starting.over()
  if (running.kept) noteConnections(running.kept, connections)
  const followed = () => processes?.follow({ config, listen: sockets.listen, handler: handlers.listen })
  await followed()?.catch(async (error: unknown) => {
    await cut(sockets)
    await gateways.close(0)
    processes?.close()
    throw error
  })
  if (processes) lettingGo = createLettingGo(clock, () => processes.beyondShare(connections.size))

  return {
    get listen() {
      return where(sockets.listen)
    },
    get admin() {
      return sockets.admin && where(sockets.admin)
    },
    async reload(load) {
      const isNew = await gateways.replace(async () => {
        const next = load()
        // Opens new addresses first: a taken one must be known before anything changes.
        const opened = await openSockets(next, handlers, { config, sockets })
        const running = await create(next, { previous: gateways.current }).catch(async (error: unknown) => {
          processes?.abandon()
          await stopOthers(opened, sockets)
          throw error
        })
        void tellMoved(config, next, { clock, log })
        const old = sockets
        sockets = opened
        config = next
        setClocks(sockets, next)
        setModes(next, log)
        connections.set(connectionLimits(next, descriptors))
        const moved = all(old).filter((server) => !all(sockets).includes(server))
        for (const server of moved) {
          left.add(server)
          void stop(server).then(() => left.delete(server))
        }
        return running
      }, config.limits.grace)
      // This process answers by the new configuration in any case.
      if (isNew && !closing)
        await followed()?.catch((error: unknown) => log('error', 'workers.failed', { why: wordsOf(error) }))
      return isNew
    },
    async close() {
      closing = true
      lettingGo?.close()
      const began = clock.monotonic()
      const { grace: graceMs, lameDuck: lameDuckMs } = config.limits
      log('info', 'server.stopping', { connections: connections.size, lameDuckMs, graceMs })
      gateways.current.drain()
      const workersEnd = processes?.stop(graceMs, lameDuckMs)
      // Clients that a load balancer sends meanwhile are answered, and their connections end with the answer.
      if (lameDuckMs > 0) await clock.sleep(lameDuckMs)
      const { listen } = sockets
      const until = clock.monotonic() + graceMs
      const closed = [stop(listen)]
      // Idle ones are closed by now: those that are left are being answered.
      await new Promise((resolve) => setImmediate(resolve))
      if (connections.size > 0) log('info', 'server.waiting', { connections: connections.size, graceMs })
      // What workers hand on is answered here until they have ended.
      await workersEnd
      await gateways.close(Math.max(0, until - clock.monotonic()))
      processes?.close()
      // The admin address is closed last: until then /readyz says that the gateway is stopping. A reload under way has opened others.
      closed.push(...all(sockets).flatMap((server) => (server === listen ? [] : [stop(server)])))
      for (const server of [...all(sockets), ...left]) server.closeAllConnections()
      await Promise.all(closed)
      log('info', 'server.stopped', { ms: Math.round(clock.monotonic() - began) })
    },
  }
}

async function tellMoved(
  before: Config,
  next: Config,
  { clock, log }: { readonly clock: Clock; readonly log: Log },
): Promise<void> {
  try {
    const looking = { folders: processFolders, clock, log }
    for (const why of await leftWith(before, next, looking)) log('warn', 'data.left-behind', { why })
  } catch (error) {
    log('warn', 'data.left-behind', { error: String(error) })
  }
}

type Sockets = { readonly listen: Server; readonly admin: Server | undefined }
type Handlers = HttpServerOptions & { readonly listen: RequestListener; readonly admin: RequestListener }

/** Keeps sockets whose address is the same, and opens the others. All of them, or none. */
async function openSockets(
  config: Config,
  handlers: Handlers,
  open?: { readonly config: Config; readonly sockets: Sockets },
): Promise<Sockets> {
  const kept = (key: 'listen' | 'admin') =>
    open && isSameAddress(config[key], open.config[key]) ? open.sockets[key] : undefined
  const listen = kept('listen') ?? (await listenOn(config.listen, handlers.listen, 'listen', handlers))
  try {
    const admin = config.admin ? (kept('admin') ?? (await listenOn(config.admin, handlers.admin, 'admin'))) : undefined
    const sockets = { listen, admin }
    if (!open) setClocks(sockets, config)
    return sockets
  } catch (error) {
    if (listen !== open?.sockets.listen) await stop(listen)
    throw error
  }
}

const backlog = 2048

async function listenOn(
  address: Address,
  handler: RequestListener,
  key: ListenerKind,
  options: HttpServerOptions = {},
): Promise<Server> {
  const refused = (why: unknown) =>
    new ConfigError([{ path: [key], what: `${addressText(address)} cannot be listened on: ${why}` }])
  if (isUnix(address))
    await makeWay(address).catch((error: Error) => {
      throw refused(error.message)
    })
  const server = createHttpServer(handler, options)
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      const next = error.code === 'EADDRINUSE' ? ' (expected an address that is free)' : ''
      reject(refused(`${error.code}${next}`))
    })
    server.once('listening', () => resolve(server))
    if (isUnix(address)) listenOnUnix(server, address, key, backlog)
    else server.listen({ ...address, backlog })
  })
}

/** Of unix sockets that are kept. The gateway that was loaded runs by now: a file that the operator took away is told. */
function setModes(config: Config, log: Log): void {
  for (const key of ['listen', 'admin'] as const) {
    const address = config[key]
    if (!address || !isUnix(address)) continue
    try {
      setMode(address, key)
    } catch (error) {
      log('warn', 'socket.mode', { key, path: address.path, error: String(error) })
    }
  }
}

function setClocks(sockets: Sockets, { limits }: Config): void {
  for (const server of all(sockets)) {
    server.headersTimeout = limits.headers
    server.keepAliveTimeout = limits.keepAlive
  }
}

const all = ({ listen, admin }: Sockets): Server[] => (admin ? [listen, admin] : [listen])

async function cut(sockets: Sockets): Promise<void> {
  const closed = all(sockets).map(stop)
  for (const server of all(sockets)) server.closeAllConnections()
  await Promise.all(closed)
}

async function stopOthers(sockets: Sockets, keep: Sockets): Promise<void> {
  await Promise.all(
    all(sockets)
      .filter((server) => !all(keep).includes(server))
      .map(stop),
  )
}

function where(server: Server): string {
  const at = server.address()
  return typeof at === 'object' && at
    ? addressText({ host: at.address, port: at.port })
    : addressText({ path: String(at) })
}
