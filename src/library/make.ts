// Assembles a gateway, in the order in which its parts may refuse the configuration.
import { CID } from 'multiformats/cid'
import type { Provider } from '../../backends/pinning/contract.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import { type Complaint, ConfigError } from '../config/complaints.ts'
import type { Config } from '../config/load.ts'
import { version } from '../config/package.ts'
import type { Clock } from '../core/clock.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import { createLog, formatFor, type Log } from '../core/log.ts'
import { createTrace } from '../core/wire/trace.ts'
import { processFolders } from '../data-folder/folder.ts'
import type { Inside } from '../http/gateway-handlers.ts'
import { asFailure } from '../http/wire/problem.ts'
import type { ParserRefusal } from '../http/wire/request.ts'
import { type QueuedRecord, writeRecords } from '../names/ipns-record.ts'
import { createSpanExporter, readTraceSettings, type SpanExporter, type TraceEnvironment } from '../observe/tracing.ts'
import type { Store } from '../store/store.ts'
import { isOwner, isWorker, type Team, type WorkerTeam } from '../team/team.ts'
import { wireAdmin } from '../wiring/admin.ts'
import { openOrphaned, wireBackends } from '../wiring/backends.ts'
import { type ComponentRegistry, type Own, takeScheduler, type WiringContext } from '../wiring/components.ts'
import { reportOrphans } from '../wiring/orphaned-uploads.ts'
import { type Front, type Public, wireFront, wirePublic } from '../wiring/public.ts'
import { type ReadSide, type RecordPlace, wireReading } from '../wiring/reading.ts'
import { wireRouting } from '../wiring/routing.ts'
import { type Tiers, wireTiers } from '../wiring/tiers.ts'
import { ownDataFolder, wireUploads } from '../wiring/uploads.ts'
import { wireWorker } from '../wiring/worker.ts'
import { createAdd } from './add.ts'
import { createLibraryReader, type GetDeps, type LibraryReader } from './get.ts'
import { createWhy, type WhyDeps } from './why.ts'

export type LibraryInside = Inside & {
  readonly get: LibraryReader['get']
  readonly add: ReturnType<typeof createAdd>
  /** Records a request that the server refused. */
  refused(refusal: ParserRefusal): void
  drain(): void
}

type MakeOptions = {
  readonly config: Config
  readonly log: Log | undefined
  readonly clock: Clock
  readonly kept: ComponentRegistry
  readonly own: Own
  readonly tracing: TraceEnvironment
  readonly team: Team | undefined
}

/** Rejects with a ConfigError or a Failure, after closing everything it had started. */
export async function makeGateway(options: MakeOptions): Promise<LibraryInside> {
  const { config, log, clock, kept, own, tracing, team } = options
  const latest = log ?? createLog(config.log.level, undefined, formatFor(config.log.format))
  const lease = kept.lease()
  const logs = lease.take('log', [], () => createLogOfNewest(latest))
  try {
    const spans = takeSpans(tracing, { lease, clock, log: logs.log })
    const trace = lease.take('trace', [], () => createTrace({ recorder: spans, clock }))
    const role = team && lease.take('role', [team], () => ({ isOwner: !isWorker(team) }))
    const turns = takeScheduler(lease, clock)
    const { userAgent } = config.retrieval
    const shared = { folders: processFolders, log: logs.log, trace, spans }
    const context = { config, userAgent, clock, lease, turns, own, team, role, ...shared }
    const { begin, reader, ...parts } = isWorker(team) ? await assembleWorker(context, team) : await assemble(context)
    logs.follow(latest)
    begin()
    return {
      ...parts,
      get: reader.get,
      close() {
        reader.close()
        return lease.end()
      },
    }
  } catch (error) {
    await lease.end().catch((cause: unknown) => latest('error', 'gateway.close-failed', { error: String(cause) }))
    throw error
  }
}

function takeSpans(
  environment: TraceEnvironment,
  { lease, clock, log }: Pick<WiringContext, 'lease' | 'clock' | 'log'>,
): SpanExporter | undefined {
  const { settings, faults } = readTraceSettings(environment)
  for (const why of faults) log('warn', 'spans.settings', { why })
  if (!settings) return undefined
  return lease.open('spans', [], () => createSpanExporter({ settings, version, clock, log }))
}

/**
 * A log that follows reloads: it writes to the newest gateway's log. A separate function, because
 * parts that outlive a gateway hold this log, and a closure would keep that gateway in memory.
 */
function createLogOfNewest(first: Log): { readonly log: Log; follow(latest: Log): void } {
  let newest = first
  const log: Log = (...line) => newest(...line)
  return {
    log: Object.assign(log, { lost: () => newest.lost?.() ?? 0 }),
    follow(latest) {
      newest = latest
    },
  }
}

type Assembled = Omit<LibraryInside, 'close' | 'get'> & {
  readonly begin: () => void
  readonly reader: LibraryReader
}

async function assembleWorker(context: WiringContext, team: WorkerTeam): Promise<Assembled> {
  const { begin, ...parts } = await wireWorker(context, team)
  const { reading, front, shared } = parts
  return {
    reader: readerOf(context, parts),
    add: () => Promise.reject(new Failure('unsupported', 'a worker accepts no uploads', { source: 'ours' })),
    ...front,
    admin: (_request, response) => void response.destroy(),
    refused: shared.refused,
    drain() {},
    begin() {
      begin()
      reading.denials.begin()
    },
  }
}

/** A separate function, because parts that outlive this gateway hold it. */
const recordsIn = (store: Store): RecordPlace => ({
  store,
  write: (records, max) => writeRecords(store, max, records),
})

/**
 * Answers workers: blocks of uploads that are only in the memory of this process, and IPNS records
 * that they found.
 */
function answerWorkers({ team, config, log }: WiringContext, { stack }: Tiers, store: Store): void {
  if (!isOwner(team)) return
  team.on('records', (said) =>
    writeRecords(store, config.names.maxEntries, said as readonly QueuedRecord[]).catch((error: unknown) =>
      log('warn', 'names.store-failed', { error: wordsOf(error) }),
    ),
  )
  team.on('block', async (said) => stack.near(CID.parse(String(said)))?.bytes)
}

async function assemble(context: WiringContext): Promise<Assembled> {
  const { folder, store } = await ownDataFolder(context)
  const { providers, tiers: bare, upstreams } = wireBackends(context)
  const former = await openOrphaned(context)
  const tiers = wireTiers(context, bare, [...providers, ...former], store)
  const reading = await wireReading(context, tiers, upstreams, recordsIn(store))
  const shared = wirePublic(context)
  const writing = wireUploads(context, { ...shared, folder, store, providers, former, reading, tiers: tiers.names })
  const { routes, publisher } = wireRouting(context, { ...shared, store, providers, former, reading })
  const front = wireFront(context, reading, tiers, shared, [...writing.routes, ...routes], writing.offered)
  const parts = { reading, tiers, front, shared }
  const why = createWhy(lookOf(context, parts))
  const admin = wireAdmin(context, { ...parts, providers, store, writing, why, publisher })
  const { forwardTo } = context.config.upload
  const through = forwardTo && new URL(forwardTo.url).host
  return {
    reader: readerOf(context, parts),
    add: createAdd({ ...writing, through, failed: failureOf(context, shared) }),
    ...front,
    admin: admin.handler,
    refused: shared.refused,
    drain: admin.drain,
    begin() {
      admin.begin()
      answerWorkers(context, tiers, store)
      reading.denials.begin()
      reportOrphans(context, store, providers, former)
    },
  }
}

type ForGet = { readonly reading: ReadSide; readonly tiers: Tiers; readonly front: Front; readonly shared: Public }

const readerOf = (context: WiringContext, parts: ForGet): LibraryReader =>
  createLibraryReader({
    ...lookOf(context, parts),
    onEnd: parts.shared.requests.read,
    failed: failureOf(context, parts.shared),
  })

/** The dependencies of a GET, for `why`. */
const lookOf = ({ config, clock }: WiringContext, { reading, tiers, front, shared }: ForGet): WhyDeps => ({
  retrieval: reading.retrieval,
  names: reading.names,
  limits: shared.limits,
  jsonDetector: front.jsonDetector,
  jsonMaxBytes: config.responses.json.maxBytes,
  mode: config.responses.types,
  stalledMs: config.limits.writeTimeout,
  tiers: tiers.names,
  clock,
})

/** Counts an error of the library, logs an unexpected one, and converts it to a Failure. */
const failureOf =
  ({ log }: WiringContext, { requests }: Public): GetDeps['failed'] =>
  (error, about) => {
    const failure = asFailure(error)
    requests.failed(failure)
    const { cause } = failure
    if (failure.kind === 'internal')
      log('error', 'request.error', { path: about, error: cause instanceof Error ? cause.stack : String(cause) })
    return failure
  }

/**
 * A program's own backends, in addition to the configured ones. The gateway uses them, and never
 * closes one.
 */
export type OwnBackends = {
  /** Asked after the configured tiers: those in memory first. */
  readonly tiers?: readonly Tier[] | undefined
  /** Raced with the configured upstreams, ordered by speed. */
  readonly upstreams?: readonly Upstream[] | undefined
  /**
   * Receive every upload, like the configured ones; `pinning.minConfirmations` counts all of them.
   */
  readonly providers?: readonly Provider[] | undefined
}

const promised = {
  tiers: { methods: ['get', 'put', 'has', 'delete', 'close'], traits: ['persistent', 'shared', 'trusted'] },
  upstreams: { methods: ['ask', 'probe', 'close'], traits: ['dag'] },
  providers: { methods: ['pin', 'unpin', 'status', 'probe', 'close'], traits: ['takesBytes', 'local'] },
} as const

type KindName = keyof typeof promised

/** Throws a ConfigError that names the argument: `option providers[0]: …`. */
export function ownOf(said: OwnBackends): Own {
  const wrong = (Object.keys(promised) as KindName[]).flatMap((kind) => contractFaults(kind, said[kind]))
  if (wrong.length > 0) throw new ConfigError(wrong)
  const { tiers = [], upstreams = [], providers = [] } = said
  return { tiers, upstreams, providers }
}

function contractFaults(kind: KindName, list: unknown): Complaint[] {
  if (list === undefined) return []
  if (!Array.isArray(list)) return [`option ${kind}: is not valid (expected a list)`]
  return list.flatMap((one, index) => missing(kind, one).map((what) => `option ${kind}[${index}]: ${what}`))
}

function missing(kind: KindName, one: unknown): string[] {
  if (typeof one !== 'object' || one === null) return ['is not valid (expected an object)']
  const of = (key: string): unknown => Reflect.get(one, key)
  const wrong: string[] = []
  const name = of('name')
  if (typeof name !== 'string' || !/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(name))
    wrong.push('`name` is not valid (expected up to 64 letters, digits, dots, dashes or underscores)')
  for (const method of promised[kind].methods)
    if (typeof of(method) !== 'function') wrong.push(`\`${method}\` is missing (expected a method)`)
  const traits = of('traits')
  const known = typeof traits === 'object' && traits !== null ? traits : {}
  for (const trait of promised[kind].traits)
    if (typeof Reflect.get(known, trait) !== 'boolean')
      wrong.push(`\`traits.${trait}\` is missing (expected true or false)`)
  if (kind === 'upstreams' && typeof Reflect.get(known, 'canBlock') !== 'function')
    wrong.push('`traits.canBlock` is missing (expected a method)')
  return wrong
}

/** Throws a ConfigError for names that collide, or backends that do not fit the configuration. */
export function refuseMisfits(own: Own, { cache, retrieval, pinning, upload }: Config): void {
  const twice = (kind: KindName, configured: readonly { readonly name: string }[]): string[] => {
    const names = new Set(configured.map(({ name }) => name))
    return own[kind].flatMap(({ name }, index) => {
      const isTaken = names.has(name)
      names.add(name)
      return isTaken ? [`option ${kind}[${index}]: "${name}" is used twice (expected a unique name)`] : []
    })
  }
  const wrong: Complaint[] = [
    ...twice('tiers', cache.tiers),
    ...twice('upstreams', retrieval.upstreams),
    ...twice('providers', pinning.providers),
  ]
  const count = pinning.providers.length + own.providers.length
  if (count > 0 && pinning.minConfirmations !== 'all' && pinning.minConfirmations > count)
    wrong.push({
      path: ['pinning', 'minConfirmations'],
      what: `expected at most ${count}, the number of providers, or all`,
    })
  if (pinning.providers.length === 0 && count > 0 && !own.providers.some(({ traits }) => traits.takesBytes))
    wrong.push(
      'option providers: no provider gets the bytes (expected one that accepts bytes in addition to those that fetch them)',
    )
  if (upload.forwardTo && own.providers.length > 0)
    wrong.push('option providers: they get nothing with `upload.forwardTo` (expected none)')
  if (wrong.length > 0) throw new ConfigError(wrong)
}
