// A gateway behind sockets, as the command line runs it: its configuration can be loaded again.
import { rm } from 'node:fs/promises'
import { parseConfig } from '../../src/config/load.ts'
import type { Clock } from '../../src/core/clock.ts'
import { createGateway, type Gateway } from '../../src/gateway.ts'
import { type Serving, serve } from '../../src/server/serve.ts'
import { type Fetched, fetchAll, type LogLine, tempFolder } from './gateway.ts'

export type Said = Readonly<Record<string, unknown>>

export type Served = {
  readonly url: string
  readonly data: string
  readonly serving: Serving
  readonly log: readonly LogLine[]
  /** The handler of every gateway that was made, while it is referenced. */
  readonly made: readonly WeakRef<object>[]
  get(path: string, headers?: Record<string, string>): Promise<Fetched>
  admin(path: string): Promise<Fetched>
  /** Without an argument: the file is as it was. False: refused. */
  reload(more?: Said): Promise<boolean>
  /** Every counter of /metrics, by its name and labels. */
  counters(): Promise<ReadonlyMap<string, number>>
  close(): Promise<void>
}

/** `more`: what the file says, beside a folder, two free addresses, no upstream and a little memory. */
export async function startServed(more: Said, { clock }: { readonly clock?: Clock } = {}): Promise<Served> {
  const data = await tempFolder()
  const log: LogLine[] = []
  const made: WeakRef<object>[] = []
  const note = (level: string, event: string, facts: Said = {}) => void log.push({ level, event, facts })
  const configOf = (said: Said) => {
    const { retrieval, cache, limits, ...rest } = said as Record<string, Said>
    return parseConfig({
      data,
      listen: '127.0.0.1:0',
      admin: '127.0.0.1:0',
      ...rest,
      // No request is refused, and no connection let go, because the machine is busy with other tests.
      limits: { maxEventLoopDelay: 0, keepAliveTimeout: '1m', ...limits },
      retrieval: { probeEvery: 0, upstreams: [], ...retrieval },
      cache: { tiers: [{ use: 'memory', maxBytes: '64MiB' }], ...cache },
    })
  }
  const serving = await serve<Gateway>({
    config: configOf(more),
    log: note,
    clock,
    async create(config, { previous }) {
      const gateway = createGateway(config, { log: note, previous, clock })
      await gateway.start()
      made.push(new WeakRef(gateway.handler))
      return gateway
    },
  })
  const url = `http://${serving.listen}`
  const admin = (path: string) => fetchAll(`http://${serving.admin}${path}`)
  return {
    url,
    data,
    serving,
    log,
    made,
    get: (path, headers) => fetchAll(url + path, headers),
    admin,
    reload: (said = more) => serving.reload(() => configOf(said)),
    async counters() {
      const { body } = await admin('/metrics')
      const lines = body.toString().split('\n')
      const names = new Set(lines.flatMap((line) => /^# TYPE (\S+) counter$/.exec(line)?.[1] ?? []))
      const series = lines.flatMap((line) => {
        const [, name = '', labels = '', value] = /^([a-z_]+)(\{.*\})? (\S+)$/.exec(line) ?? []
        return names.has(name) ? [[name + labels, Number(value)] as const] : []
      })
      return new Map(series)
    },
    async close() {
      await serving.close()
      await rm(data, { recursive: true, force: true })
    },
  }
}
