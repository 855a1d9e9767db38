// A Kubo node of a test's own: offline (it dials no peer and no peer dials it), RPC and gateway on free loopback ports.
import { freePort, type Running, run, runOnce, tempFolder } from './processes.ts'

export type Kubo = {
  readonly rpc: string
  readonly gateway: string
  readonly repo: string
  readonly pid: number
  /** `ipfs …` against this node. */
  ipfs(args: readonly string[], input?: Uint8Array): string
  stop(): Promise<void>
}

export type KuboOptions = {
  readonly namesMap?: string
  readonly config?: Record<string, unknown>
  /** How it makes files into blocks, by the name Kubo has for it. */
  readonly profile?: string
  /** It fetches over HTTP what its routers name; still no peer is dialled. */
  readonly isOnline?: boolean
}

export async function startKubo(options: KuboOptions = {}): Promise<Kubo> {
  const folder = await tempFolder()
  const env = { IPFS_PATH: folder.path, IPFS_TELEMETRY: 'off' }
  const ipfs = (args: readonly string[], input?: Uint8Array) => runOnce('ipfs', args, { env, ...(input && { input }) })
  let node: Running | undefined
  try {
    ipfs(['init', `--profile=${['test', ...(options.profile ? [options.profile] : [])].join(',')}`])
    const [rpcPort, gatewayPort] = [await freePort(), await freePort()]
    const settings: Record<string, unknown> = {
      'Addresses.API': `/ip4/127.0.0.1/tcp/${rpcPort}`,
      'Addresses.Gateway': `/ip4/127.0.0.1/tcp/${gatewayPort}`,
      'Addresses.Swarm': [],
      Bootstrap: [],
      'Gateway.NoFetch': true,
      'Gateway.ExposeRoutingAPI': true,
      'Routing.Type': 'none',
      'AutoConf.Enabled': false,
      ...options.config,
    }
    for (const [key, value] of Object.entries(settings)) ipfs(['config', '--json', key, JSON.stringify(value)])
    node = await run({
      command: 'ipfs',
      args: options.isOnline ? ['daemon'] : ['daemon', '--offline'],
      env: { ...env, ...(options.namesMap && { IPFS_NS_MAP: options.namesMap }) },
      isReady: (output) => output.includes('Daemon is ready'),
      withinMs: 60_000,
    })
    const started = node
    return {
      rpc: `http://127.0.0.1:${rpcPort}`,
      gateway: `http://127.0.0.1:${gatewayPort}`,
      repo: folder.path,
      pid: started.pid,
      ipfs,
      async stop() {
        await started.stop()
        await folder.remove()
      },
    }
  } catch (error) {
    await node?.stop()
    await folder.remove()
    throw error
  }
}
