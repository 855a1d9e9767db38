// The world of a random history: a gateway behind HTTP, with an upstream, a store and a provider that outlive it and break as they are told. A
// kill copies the data folder in one turn of the event loop, which is a moment in which a process could have died, and goes on with a
// gateway over the copy; the old one reaches nothing outside any more.
import { cpSync, rmSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import type { Tier } from '../../../backends/tiers/contract.ts'
import type { Upstream } from '../../../backends/upstreams/contract.ts'
import { blockKey, proves } from '../../../src/core/block.ts'
import { silentLog } from '../../../src/core/log.ts'
import { type ConfigInput, createGateway, type Gateway, type Provider } from '../../../src/gateway.ts'
import { linksOf } from '../../../src/ipld/block-links.ts'
import { createReload, type Reload } from '../../../src/server/generations.ts'
import { addFile, type BlockMap, type FileFixture, noise } from '../../support/fixtures.ts'
import { startedGateway, tempFolder } from '../../support/gateway.ts'
import { type ScriptedProvider, scriptedProvider } from '../../support/scripted-provider.ts'
import { type ScriptedTier, scriptedTier } from '../../support/scripted-tier.ts'
import { type Script, scriptedUpstream } from '../../support/scripted-upstream.ts'

// One block, several, and one that the upstream lacks. Few, so that a history comes back to what it did.
const remote: BlockMap = new Map()
const elsewhere: BlockMap = new Map()
export const files: readonly FileFixture[] = [
  await addFile(remote, noise(1000, 1)),
  await addFile(remote, noise(1_300_000, 2)),
  await addFile(elsewhere, noise(5000, 3)),
]
export const isRemote = (index: number): boolean => index < 2

/** What a reload may change: sizes and folders of tiers, and how many providers confirm an upload. */
export type Setting = {
  readonly memory: '16MiB' | '8MiB'
  readonly disk: 'cache' | 'other' | 'none'
  readonly confirm: 1 | 2
}
export const firstSetting: Setting = { memory: '16MiB', disk: 'cache', confirm: 1 }

type Life = { readonly folder: string; readonly reload: Reload<Gateway>; readonly own: Own; end(): void }
type Own = { readonly tiers: Tier[]; readonly upstreams: Upstream[]; readonly providers: Provider[] }

export type World = {
  readonly url: string
  readonly store: ScriptedTier
  readonly upstream: Script
  readonly provider: ScriptedProvider
  /** Whether the store has every block of it, as it was. */
  storeHas(index: number): boolean
  reload(setting: Setting): Promise<void>
  /** Closed, and started again over the same folder. */
  restart(): Promise<void>
  kill(): Promise<void>
  close(): Promise<void>
}

const configOf = (data: string, { memory, disk, confirm }: Setting): ConfigInput => ({
  data,
  admin: false,
  limits: { loopDelay: 0 },
  // Long, since no upstream of this test is ever silent: a busy machine is no reason to find nothing.
  retrieval: { upstreams: [], probeEvery: 0, deadline: '20s' },
  cache: {
    tiers: [
      { use: 'memory' as const, maxBytes: memory },
      ...(disk === 'none' ? [] : [{ use: 'disk' as const, maxBytes: '16MiB', path: join(data, disk) }]),
    ],
  },
  pinning: { confirm, providers: [{ name: 'local', use: 'embedded' as const }] },
})

/** The same, until the gateway that uses it is dead: then each call fails, and nothing is changed. */
function whileAlive<Part extends object>(part: Part, isDead: () => boolean): Part {
  return new Proxy(part, {
    get(target, key) {
      const value: unknown = Reflect.get(target, key)
      if (typeof value !== 'function') return value
      return (...given: unknown[]) => {
        if (isDead()) throw new Error('this gateway was killed')
        return Reflect.apply(value, target, given)
      }
    },
  })
}

export async function createWorld(isShared: boolean): Promise<World> {
  const store = scriptedTier('store', { shared: isShared })
  const upstream: Script = {}
  const provider = scriptedProvider('second')
  let setting = firstSetting
  let handler: RequestListener = () => {}
  const behind: Promise<unknown>[] = []
  const server = createServer((request, response) => handler(request, response))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  let life = await begin(await tempFolder())

  async function begin(folder: string): Promise<Life> {
    let isDead = false
    const own: Own = {
      tiers: [whileAlive(store, () => isDead)],
      upstreams: [whileAlive(scriptedUpstream('remote', remote, upstream), () => isDead)],
      providers: [whileAlive(provider, () => isDead)],
    }
    const first = await startedGateway(configOf(folder, setting), { log: silentLog, ...own })
    const reload = createReload(first, silentLog)
    handler = reload.handler
    return {
      folder,
      reload,
      own,
      end() {
        isDead = true
      },
    }
  }

  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    store,
    upstream,
    provider,
    storeHas: (index) => isWhole(store.held, files[index] as FileFixture),
    async reload(next) {
      setting = next
      const { folder, own, reload } = life
      const done = await reload.replace(async () => {
        const gateway = createGateway(configOf(folder, next), { log: silentLog, previous: reload.current, ...own })
        await gateway.start()
        return gateway
      }, 20_000)
      if (!done) throw new Error('the configuration was refused')
    },
    async restart() {
      await life.reload.close(20_000)
      life = await begin(life.folder)
    },
    async kill() {
      const { folder, reload, end } = life
      const copy = await tempFolder()
      // From here to the cut of the connections nothing else of this process runs.
      end()
      handler = (request) => request.socket.destroy()
      copyNow(folder, copy)
      server.closeAllConnections()
      behind.push(reload.close(0).then(() => rm(folder, gone)))
      life = await begin(copy)
    },
    async close() {
      await life.reload.close(0)
      server.closeAllConnections()
      server.close()
      await Promise.all(behind)
      await rm(life.folder, gone)
    },
  }
}

/** A file that is being renamed or removed in that moment makes the copy fail: soon nothing moves any more. */
function copyNow(from: string, to: string): void {
  for (let tries = 1; ; tries++) {
    try {
      return cpSync(from, to, { recursive: true })
    } catch (error) {
      if (tries === 20) throw error
      rmSync(to, { recursive: true, force: true })
    }
  }
}

/** What an upload that was cut leaves is being removed by the gateway, too. */
const gone = { recursive: true, force: true, maxRetries: 10 } as const

const known = new Map([...remote, ...elsewhere])

function isWhole(held: ReadonlyMap<string, Uint8Array>, { cid }: FileFixture): boolean {
  const bytes = held.get(blockKey(cid))
  if (!bytes || !proves(cid, bytes) || !known.has(blockKey(cid))) return false
  return linksOf({ cid, bytes }).every((link) => isWhole(held, { cid: link, bytes }))
}
