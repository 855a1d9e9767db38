// The server: two listening sockets in front of one gateway, which SIGHUP replaces. Startup order:
// open the sockets, create the gateway, answer waiting requests; so a second process on the address
// fails before it creates a gateway. Shutdown order: report it at /readyz, wait for load balancers,
// stop accepting, answer open requests, close the gateway.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { ConfigError } from '../config/complaints.ts'
import type { Config } from '../config/load.ts'
import { type Address, addressText, isSameAddress, isUnix } from '../config/values.ts'
import { type Clock, systemClock } from '../core/clock.ts'
import { wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { processFolders } from '../data-folder/folder.ts'
import { createStarting } from '../http/gateway-handlers.ts'
import { noteConnections, noteReload } from '../wiring/admin.ts'
import type { ComponentRegistry } from '../wiring/components.ts'
import { orphanedBy } from '../wiring/orphaned-uploads.ts'
import { connectionLimits, createConnections, createFullLog, descriptorsLeft } from './connections.ts'
import { Front, type Served } from './front.ts'
import { type ListenerKind, listenOnUnix, removeStaleSocket, setMode } from './unix-socket.ts'
import type { Processes } from './workers.ts'

type ServeOptions<Running extends Replaceable> = {
  readonly config: Config
  /** Creates and starts a gateway. `previous`: the gateway that it replaces. */
  readonly create: (config: Config, options: { readonly previous?: Running | undefined }) => Promise<Running>
  readonly log: Log
  readonly clock?: Clock | undefined
  /** Worker processes, if configured. */
  readonly processes?: Processes | undefined
}

export type Serving = Awaited<ReturnType<typeof serve>>

export async function serve<Running extends Replaceable>(options: ServeOptions<Running>) {
  const { config: first, create, log, clock = systemClock, processes } = options
  const starting = createStarting({
    mode: first.responses.types,
    stalledMs: first.limits.writeTimeout,
    max: first.limits.maxConcurrentRequests,
  })
  let gateways: Reload<Running> | undefined
  const served: Served = {}
  const ofAdmin: Served = {}
  let config = first
  const handler: RequestListener = (request, response) =>
    gateways ? gateways.handler(request, response) : starting.hold(request, response, () => handler(request, response))
  const admin: RequestListener = (request, response) => (gateways ?? starting).admin(request, response)
  /** Fronts of earlier configurations whose clients are still reading. */
  const left = new Set<Front>()
  // Measured first: later the connections themselves count as open files.
  const descriptors = descriptorsLeft()
  const onFull = createFullLog(log, clock)
  const connections = createConnections(connectionLimits(first, descriptors), { clock, onFull })
  const frontOf = (kind: ListenerKind): Front => {
    if (kind === 'admin') return new Front(admin, { served: ofAdmin, clock })
    return new Front(handler, {
      ...{ served, connections, clock },
      beyondShare: processes && (() => processes.beyondShare(connections.size)),
    })
  }

  let sockets = await openSockets(first, frontOf)
  const listening = () => sockets.get('listen') as Front
  const running = await create(first, {}).catch(async (error: unknown) => {
    processes?.abandon()
    await cut(sockets)
    throw error
  })
  const reloads = createReload(running, log, served)
  gateways = reloads
  starting.over()
  if (running.kept) noteConnections(running.kept, connections)
  const followed = () => processes?.follow({ config, listen: listening(), handler: reloads.handler })
  await followed()?.catch(async (error: unknown) => {
    await cut(sockets)
    await reloads.close(0)
    processes?.close()
    throw error
  })

  return {
    /**
     * The actual address: port 0 is replaced by the real port. For a unix socket it is `unix:` and
     * its path.
     */
    get listen() {
      return where(listening())
    },
    get admin() {
      const front = sockets.get('admin')
      return front && where(front)
    },
    /** Returns false if refused (the log has the reasons), and the old gateway continues. */
    async reload(load: () => Config): Promise<boolean> {
      const isNew = await reloads.replace(async () => {
        const next = load()
        // Opens new addresses first: an address in use must be detected before anything changes.
        const opened = await openSockets(next, frontOf, { config, sockets })
        const running = await create(next, { previous: reloads.current }).catch(async (error: unknown) => {
          processes?.abandon()
          await stopOthers(opened, sockets)
          throw error
        })
        void logMovedData(config, next, { clock, log })
        const old = sockets
        sockets = opened
        config = next
        setClocks(sockets, next)
        setModes(next, log)
        connections.set(connectionLimits(next, descriptors))
        for (const front of others(old, sockets)) {
          left.add(front)
          void front.close().then(() => left.delete(front))
        }
        return running
      }, config.limits.shutdownTimeout)
      // This process uses the new configuration in any case.
      if (isNew && !served.isEnding)
        await followed()?.catch((error: unknown) => log('error', 'workers.failed', { why: wordsOf(error) }))
      return isNew
    },
    async close(): Promise<void> {
      served.isEnding = true
      ofAdmin.isEnding = true
      const began = clock.monotonic()
      const { shutdownTimeout: shutdownTimeoutMs, shutdownDelay: shutdownDelayMs } = config.limits
      log('info', 'server.stopping', { connections: connections.size, shutdownDelayMs, shutdownTimeoutMs })
      reloads.current.drain()
      const workersEnd = processes?.stop(shutdownTimeoutMs, shutdownDelayMs)
      // Clients routed here meanwhile are served, and their connections close after the response.
      if (shutdownDelayMs > 0) await clock.sleep(shutdownDelayMs)
      const listen = listening()
      const until = clock.monotonic() + shutdownTimeoutMs
      const closed = [listen.close()]
      // Idle connections have been closed: the remaining ones have responses in progress.
      await new Promise((resolve) => setImmediate(resolve))
      if (connections.size > 0) log('info', 'server.waiting', { connections: connections.size, shutdownTimeoutMs })
      // Requests forwarded by workers are handled here until the workers have exited.
      await workersEnd
      await reloads.close(Math.max(0, until - clock.monotonic()))
      await whileBusy([listen, ...left], until, clock)
      processes?.close()
      // The admin address is closed last: until then /readyz reports the shutdown. A reload in
      // progress may have opened other sockets.
      closed.push(...others(sockets, new Map([['listen', listen]])).map((front) => front.close()))
      for (const front of [...sockets.values(), ...left]) front.destroy()
      await Promise.all(closed)
      log('info', 'server.stopped', { ms: Math.round(clock.monotonic() - began) })
    },
  }
}

const pollMs = 50

/**
 * Waits for cached responses that their clients are still reading, of which only the connection
 * remains.
 */
export async function whileBusy(fronts: readonly Front[], until: number, clock: Clock): Promise<void> {
  while (fronts.some(({ isBusy }) => isBusy) && clock.monotonic() < until) await clock.sleep(pollMs)
}

async function logMovedData(
  before: Config,
  next: Config,
  { clock, log }: { readonly clock: Clock; readonly log: Log },
): Promise<void> {
  try {
    const at = { folders: processFolders, clock, log }
    for (const why of await orphanedBy(before, next, at)) log('warn', 'data.folder-changed', { why })
  } catch (error) {
    log('warn', 'data.folder-changed', { error: String(error) })
  }
}

type Sockets = ReadonlyMap<ListenerKind, Front>

/** Keeps sockets with an unchanged address and opens the others: all of them, or none. */
async function openSockets(
  config: Config,
  frontOf: (kind: ListenerKind) => Front,
  open?: { readonly config: Config; readonly sockets: Sockets },
): Promise<Sockets> {
  const sockets = new Map<ListenerKind, Front>()
  try {
    for (const kind of ['listen', 'admin'] as const) {
      const address = config[kind]
      const kept = open && isSameAddress(address, open.config[kind]) ? open.sockets.get(kind) : undefined
      if (address) sockets.set(kind, kept ?? (await listenOn(address, frontOf(kind), kind)))
    }
  } catch (error) {
    await stopOthers(sockets, open?.sockets)
    throw error
  }
  if (!open) setClocks(sockets, config)
  return sockets
}

async function listenOn(address: Address, front: Front, key: ListenerKind): Promise<Front> {
  const refused = (why: unknown) =>
    new ConfigError([{ path: [key], what: `${addressText(address)} cannot be listened on: ${why}` }])
  if (isUnix(address))
    await removeStaleSocket(address).catch((error: Error) => {
      throw refused(error.message)
    })
  await front
    .listen(isUnix(address) ? (server, backlog) => listenOnUnix(server, address, key, backlog) : address)
    .catch((error: NodeJS.ErrnoException) => {
      const next = error.code === 'EADDRINUSE' ? ' (expected an address that is free)' : ''
      throw refused(`${error.code}${next}`)
    })
  return front
}

/**
 * Sets the modes of kept unix sockets. The loaded gateway runs already, so a missing file is only
 * logged.
 */
function setModes(config: Config, log: Log): void {
  for (const key of ['listen', 'admin'] as const) {
    const address = config[key]
    if (!address || !isUnix(address)) continue
    try {
      setMode(address, key)
    } catch (error) {
      log('warn', 'socket.mode-failed', { key, path: address.path, error: String(error) })
    }
  }
}

function setClocks(sockets: Sockets, { limits }: Config): void {
  for (const front of sockets.values()) front.setTimeouts(limits)
}

async function cut(sockets: Sockets): Promise<void> {
  const closed = [...sockets.values()].map((front) => front.close())
  for (const front of sockets.values()) front.destroy()
  await Promise.all(closed)
}

/** Those of `sockets` that are not kept. */
const others = (sockets: Sockets, keep: Sockets = new Map()): Front[] =>
  [...sockets.values()].filter((front) => ![...keep.values()].includes(front))

const stopOthers = (sockets: Sockets, keep?: Sockets) =>
  Promise.all(others(sockets, keep).map((front) => front.close()))

function where({ address: at }: Front): string {
  return typeof at === 'object' && at
    ? addressText({ host: at.address, port: at.port })
    : addressText({ path: String(at) })
}

export interface Replaceable extends Pick<Served, 'hot' | 'serves' | 'refused'> {
  readonly handler: RequestListener
  readonly admin: RequestListener
  /** The parts that its successor takes over. */
  readonly kept?: ComponentRegistry
  drain(): void
  close(): Promise<void>
}

type Generation<Running> = { readonly running: Running; inFlight: number; onIdle: (() => void) | undefined }

/** A property of a response: the generation that took its request. */
const servedBy = Symbol('generation')

export type Reload<Running extends Replaceable> = ReturnType<typeof createReload<Running>>

/** `served` always has the newest gateway. */
export function createReload<Running extends Replaceable>(first: Running, log: Log, served: Served = {}) {
  type Taken = ServerResponse & { [servedBy]?: Generation<Running> | undefined }
  let newest: Generation<Running> = { running: first, inFlight: 0, onIdle: undefined }
  let replacing: Promise<unknown> = Promise.resolve()
  const retiring = new Set<Promise<void>>()
  const serveBy = ({ hot, serves, refused }: Running) => Object.assign(served, { hot, serves, refused })
  serveBy(first)

  // Shared by all requests: a closure for each would cost a tenth of a fast-path response.
  function leave(this: Taken): void {
    const generation = this[servedBy]
    if (!generation) return
    this[servedBy] = undefined
    generation.inFlight--
    if (generation.inFlight === 0) generation.onIdle?.()
  }

  function serve(which: 'handler' | 'admin') {
    return (request: IncomingMessage, response: Taken) => {
      const generation = newest
      generation.inFlight++
      response[servedBy] = generation
      response.on('close', leave)
      generation.running[which](request, response)
    }
  }

  async function retire(generation: Generation<Running>, graceMs: number): Promise<void> {
    if (generation.inFlight > 0) {
      const idle = Promise.withResolvers<void>()
      const timer = setTimeout(idle.resolve, graceMs)
      generation.onIdle = idle.resolve
      await idle.promise
      clearTimeout(timer)
    }
    try {
      await generation.running.close()
    } catch (error) {
      log('error', 'gateway.close-failed', { error: String(error) })
    }
  }

  async function replaceNow(make: () => Promise<Running>, graceMs: number): Promise<boolean> {
    try {
      const running = await make()
      const old = newest
      newest = { running, inFlight: 0, onIdle: undefined }
      serveBy(running)
      const retired = retire(old, graceMs)
      retiring.add(retired)
      void retired.finally(() => retiring.delete(retired))
      if (running.kept) noteReload(running.kept, true)
      log('info', 'config.reloaded')
      return true
    } catch (error) {
      if (newest.running.kept) noteReload(newest.running.kept, false)
      const lines = error instanceof ConfigError ? error.message.split('\n') : [String(error)]
      for (const line of lines) log('error', 'config.refused', { why: line })
      return false
    }
  }

  return {
    get current() {
      return newest.running
    },
    handler: serve('handler') as RequestListener,
    admin: serve('admin') as RequestListener,
    /**
     * Creates the next gateway and switches to it. Returns false if creation failed and the old one
     * stays. One at a time.
     */
    replace(make: () => Promise<Running>, graceMs: number): Promise<boolean> {
      const replaced = replacing.then(() => replaceNow(make, graceMs))
      replacing = replaced
      return replaced
    },
    /** Resolves when every request was answered, or after `graceMs`; then closes everything. */
    async close(graceMs: number): Promise<void> {
      await replacing
      await Promise.all([retire(newest, graceMs), ...retiring])
    },
  }
}
