// The world of a random history whose gateway is a process of its own: a kill is SIGKILL, a restart is SIGTERM and a start, a reload is
// SIGHUP. Its upstream, its provider (a Kubo node) and its store are servers of this process. Slower by far than world.ts.
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startGateway } from '../../soak/gateway-process.ts'
import { fetchAll } from '../../support/gateway.ts'
import { kuboApi, type StandIn, startStandIn, token } from '../../support/providers.ts'
import { type ProgrammableUpstream, startUpstream } from '../../support/upstream.ts'
import { remote } from './content.ts'
import { createReader } from './reader.ts'
import { type StoreKind, startStore, type Way } from './stores.ts'
import { type Conduct, firstSetting, gone, type Ills, type Setting, tiersOf, type World } from './world.ts'

const reloadedMs = 60_000

function configOf(folder: string, setting: Setting, { entries }: Way, upstream: string, kubo: string, workers: number) {
  const data = join(folder, 'data')
  const second = { name: 'second', use: 'kubo', url: kubo, auth: { bearer: token }, gateway: false }
  return {
    listen: '127.0.0.1:0',
    admin: '127.0.0.1:0',
    data,
    workers,
    log: { level: 'error' },
    limits: { maxEventLoopDelay: 0, perClient: { perMinute: 10_000_000 } },
    retrieval: { upstreams: [{ name: 'remote', url: upstream }], probeEvery: 0, timeout: '20s' },
    cache: { tiers: tiersOf(data, setting, entries) },
    pinning: {
      minConfirmations: setting.confirm,
      probeEvery: '0s',
      providers: [{ name: 'local', use: 'embedded' }, second],
    },
  }
}

/** Bytes of a CAR: in the first block, in the middle, before the end. */
const breaks = [0, 300, 700_000]

function makeIll(upstream: ProgrammableUpstream, { lieAt, breakAfter }: Ills): void {
  upstream.fault = ({ url }) => {
    const isCar = url.includes('format=car')
    if (lieAt !== undefined && (lieAt === -1) !== isCar) return { kind: 'wrongBytes', block: Math.max(0, lieAt) }
    if (breakAfter !== undefined && isCar) return { kind: 'cut', after: breaks[breakAfter] ?? 0 }
    return undefined
  }
}

const anotherCid = 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'

function behave(kubo: StandIn, conduct: Conduct): void {
  const isImport = (path: string): boolean => path.endsWith('/dag/import') || path.endsWith('/add')
  kubo.otherCid = conduct === 'lies' ? anotherCid : undefined
  kubo.cutAfter = conduct === 'breaks' ? ({ path }) => (isImport(path) ? 500 : undefined) : undefined
  kubo.script = ({ path }) => {
    if (conduct === 'dead') return 'cut'
    if (conduct === 'crashes' && isImport(path))
      return { status: 500, json: { Message: 'a bug', Code: 0, Type: 'error' } }
    return undefined
  }
}

export async function createProcessWorld(kind: StoreKind, workers: number): Promise<World> {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-model-'))
  const store = await startStore(kind)
  const upstream = await startUpstream({ blocks: remote })
  const kubo = await startStandIn(kuboApi)
  const way = await store.way(true)
  let setting = firstSetting
  const config = () => configOf(folder, setting, way, upstream.url, kubo.url, workers)
  const start = () => startGateway(folder, config(), [], { isMute: true })
  let gateway = await start()
  const reader = await createReader(store)

  async function reloads(outcome: 'accepted' | 'refused'): Promise<number> {
    const page = (await fetchAll(`${gateway.admin}/metrics`)).body.toString()
    return Number(
      new RegExp(`^cidgate_config_reloads_total\\{outcome="${outcome}"\\} (\\d+)`, 'm').exec(page)?.[1] ?? 0,
    )
  }

  return {
    get url() {
      return gateway.url
    },
    get admin() {
      return gateway.admin ?? ''
    },
    store,
    reader,
    upstreamIs: (ills) => makeIll(upstream, ills),
    providerIs: (conduct) => behave(kubo, conduct),
    providerHolds: (cid) => kubo.pins.has(cid),
    async reload(next) {
      setting = next
      const before = await reloads('accepted')
      await writeFile(join(folder, 'config.json'), JSON.stringify(config()))
      gateway.reload()
      const until = performance.now() + reloadedMs
      while ((await reloads('accepted')) === before) {
        if ((await reloads('refused')) > 0) throw new Error('the configuration was refused')
        if (performance.now() > until) throw new Error('the configuration was not loaded')
        await sleep(5)
      }
    },
    async restart() {
      await gateway.stop()
      if (!gateway.ended?.includes('exit code 0')) throw new Error(`it ended with ${gateway.ended}`)
      gateway = await start()
    },
    async kill() {
      gateway.signal('SIGKILL')
      await gateway.stopping
      gateway = await start()
    },
    moment: (steps) => sleep(steps),
    async close() {
      gateway.signal('SIGKILL')
      await gateway.stopping
      await reader.close()
      for (const one of [upstream, kubo, store]) await one.close()
      await rm(folder, gone)
    },
  }
}
