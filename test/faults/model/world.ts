// The world of a random history: a gateway behind HTTP, with an upstream, a store and a provider that outlive it and break as they are
// told, and, where the store is shared, a second gateway that has nothing but the store. Here the gateway runs in this process, and a
// kill copies the data folder in one turn of the event loop, which is a moment in which a process could have died, and goes on with a
// gateway over the copy; the old one reaches nothing outside any more. process-world.ts has a process that is really killed.
import { copyFileSync, mkdirSync, readdirSync, rmSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { createServer, type RequestListener, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { silentLog } from '../../../src/core/log.ts'
import { type ConfigInput, createGateway, type Gateway, type GatewayOptions } from '../../../src/gateway.ts'
import { createReload, type Reload } from '../../../src/server/serve.ts'
import { startedGateway, tempFolder } from '../../support/gateway.ts'
import { type Behaviour, scriptedProvider } from '../../support/scripted-provider.ts'
import { type Script, scriptedUpstream } from '../../support/scripted-upstream.ts'
import { remote } from './content.ts'
import { createReader, type Reader } from './reader.ts'
import { type ModelStore, type StoreKind, startStore, type Way, whileAlive } from './stores.ts'

/** What a reload may change: sizes and folders of tiers, and how many providers confirm an upload. */
export type Setting = {
  readonly memory: '16MiB' | '8MiB'
  readonly disk: 'cache' | 'other' | 'none'
  readonly confirm: 1 | 2
}
export const firstSetting: Setting = { memory: '16MiB', disk: 'cache', confirm: 1 }

export type Ills = Pick<Script, 'lieAt' | 'breakAfter'>
export type Conduct = Extract<Behaviour, 'holds' | 'dead' | 'lies' | 'breaks' | 'crashes'>

export type World = {
  readonly url: string
  readonly admin: string
  readonly store: ModelStore
  /** None where the store is of one gateway. */
  readonly reader: Reader | undefined
  upstreamIs(ills: Ills): void
  providerIs(conduct: Conduct): void
  /** By its CID of version 1. */
  providerHolds(cid: string): boolean
  reload(setting: Setting): Promise<void>
  /** Closed, and started again over the same folder. */
  restart(): Promise<void>
  kill(): Promise<void>
  /** So far, from 0 to 60, into what has just begun. */
  moment(steps: number): Promise<void>
  close(): Promise<void>
}

type Life = {
  readonly folder: string
  readonly reload: Reload<Gateway>
  readonly own: Own
  readonly way: Way
  end(): void
}
type Own = Pick<GatewayOptions, 'tiers' | 'upstreams' | 'providers'>

const secondName = 'second'

const configOf = (data: string, setting: Setting, { entries }: Way): ConfigInput => ({
  data,
  admin: false,
  limits: { maxEventLoopDelay: 0 },
  // Long, since no upstream of this test is ever silent: a busy machine is no reason to find nothing.
  retrieval: { upstreams: [], probeEvery: 0, timeout: '20s' },
  cache: { tiers: tiersOf(data, setting, entries) as never },
  pinning: { minConfirmations: setting.confirm, providers: [{ name: 'local', use: 'embedded' as const }] },
})

export const tiersOf = (data: string, { memory, disk }: Setting, entries: Way['entries']) => [
  { use: 'memory', maxBytes: memory },
  ...(disk === 'none' ? [] : [{ use: 'disk', maxBytes: '16MiB', path: join(data, disk) }]),
  ...entries,
]

export async function createWorld(kind: StoreKind): Promise<World> {
  const store = await startStore(kind)
  const upstream: Script = {}
  const provider = scriptedProvider(secondName)
  let setting = firstSetting
  let handler: RequestListener = () => {}
  let admin: RequestListener = () => {}
  const behind: Promise<unknown>[] = []
  const server = await serve((request, response) => handler(request, response))
  const adminServer = await serve((request, response) => admin(request, response))
  let life = await begin(await tempFolder())
  const reader = kind === 'own' ? undefined : await createReader(store)

  async function begin(folder: string): Promise<Life> {
    let isDead = false
    const way = await store.way()
    const own: Own = {
      tiers: [...way.tiers],
      upstreams: [whileAlive(scriptedUpstream('remote', remote, upstream), () => isDead)],
      providers: [whileAlive(provider, () => isDead)],
    }
    const first = await startedGateway(configOf(folder, setting, way), { log: silentLog, ...own })
    const reload = createReload(first, silentLog)
    handler = reload.handler
    admin = reload.admin
    return {
      folder,
      reload,
      own,
      way,
      end() {
        isDead = true
        behind.push(way.cut())
      },
    }
  }

  return {
    url: urlOf(server),
    admin: urlOf(adminServer),
    store,
    reader,
    upstreamIs(ills) {
      delete upstream.lieAt
      delete upstream.breakAfter
      Object.assign(upstream, ills)
    },
    providerIs(conduct) {
      provider.behaviour = conduct
    },
    providerHolds: (cid) => provider.held.has(cid),
    async reload(next) {
      setting = next
      const { folder, own, reload, way } = life
      const done = await reload.replace(async () => {
        const config = configOf(folder, next, way)
        const gateway = createGateway(config, { log: silentLog, previous: reload.current, ...own })
        await gateway.start()
        return gateway
      }, 20_000)
      if (!done) throw new Error('the configuration was refused')
    },
    async restart() {
      await life.reload.close(20_000)
      await life.way.cut()
      life = await begin(life.folder)
    },
    async kill() {
      const { folder, reload, end } = life
      const copy = await tempFolder()
      // From here to the cut of the connections nothing else of this process runs.
      end()
      handler = (request) => request.socket.destroy()
      admin = handler
      copyNow(folder, copy)
      for (const one of [server, adminServer]) one.closeAllConnections()
      behind.push(reload.close(0).then(() => rm(folder, gone)))
      life = await begin(copy)
    },
    async moment(steps) {
      for (let turn = 0; turn < steps; turn++) await setImmediate()
    },
    async close() {
      await life.reload.close(0)
      await reader?.close()
      for (const one of [server, adminServer]) {
        one.closeAllConnections()
        one.close()
      }
      await life.way.cut()
      await Promise.all(behind)
      await store.close()
      await rm(life.folder, gone)
    },
  }
}

async function serve(listener: RequestListener): Promise<Server> {
  const server = createServer(listener)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return server
}

const urlOf = (server: Server): string => `http://127.0.0.1:${(server.address() as AddressInfo).port}`

/** A file that is being renamed or removed in that moment makes the copy fail, or fall between two looks: soon nothing moves any more. */
function copyNow(from: string, to: string): void {
  for (let tries = 1; ; tries++) {
    try {
      const before = namesBelow(from)
      copyFolder(from, to)
      if (tries === 20 || namesBelow(from) === before) return
    } catch (error) {
      if (tries === 20) throw error
    }
    rmSync(to, { recursive: true, force: true })
  }
}

const namesBelow = (folder: string): string => readdirSync(folder, { recursive: true }).sort().join()

/** By hand: `cpSync` ends the process where a folder goes away under it. */
function copyFolder(from: string, to: string): void {
  mkdirSync(to, { recursive: true })
  for (const entry of readdirSync(from, { withFileTypes: true })) {
    const [source, target] = [join(from, entry.name), join(to, entry.name)]
    if (entry.isDirectory()) copyFolder(source, target)
    else copyFileSync(source, target)
  }
}

/** What an upload that was cut leaves is being removed by the gateway, too. */
export const gone = { recursive: true, force: true, maxRetries: 10 } as const
