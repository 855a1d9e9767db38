// An IPFS Cluster of one peer in front of a Kubo node of the test's own.
import { join } from 'node:path'
import { freePort, run, runOnce, tempFolder } from './processes.ts'

export async function startCluster(kuboRpc: string) {
  const folder = await tempFolder()
  const [rest, proxy, pinning, swarm] = [await freePort(), await freePort(), await freePort(), await freePort()]
  const local = (port: number) => `/ip4/127.0.0.1/tcp/${port}`
  const env = {
    IPFS_CLUSTER_PATH: join(folder.path, 'cluster'),
    CLUSTER_LISTENMULTIADDRESS: local(swarm),
    CLUSTER_RESTAPI_HTTPLISTENMULTIADDRESS: local(rest),
    CLUSTER_IPFSPROXY_LISTENMULTIADDRESS: local(proxy),
    CLUSTER_PINSVCAPI_HTTPLISTENMULTIADDRESS: local(pinning),
    CLUSTER_IPFSHTTP_NODEMULTIADDRESS: local(Number(new URL(kuboRpc).port)),
    CLUSTER_IPFSPROXY_NODEMULTIADDRESS: local(Number(new URL(kuboRpc).port)),
    CLUSTER_MDNSINTERVAL: '0',
    CLUSTER_MONITORPINGINTERVAL: '2s',
  }
  runOnce('ipfs-cluster-service', ['init', '--consensus', 'crdt'], { env })
  const server = await run({
    command: 'ipfs-cluster-service',
    args: ['daemon'],
    env,
    isReady: async (output) => {
      if (!output.includes('Cluster is ready')) return false
      const health = await fetch(`http://127.0.0.1:${rest}/health`).catch(() => undefined)
      return health?.status === 204
    },
    withinMs: 60_000,
  })
  return {
    rest: `http://127.0.0.1:${rest}`,
    pinning: `http://127.0.0.1:${pinning}`,
    async stop() {
      await server.stop()
      await folder.remove()
    },
  }
}
