// An IPFS Cluster of one peer in front of a Kubo node of the test's own.
import { join } from 'node:path'
import { freePort, run, runOnce, tempFolder } from './processes.ts'

export type Login = { readonly user: string; readonly password: string }

export async function startCluster(kuboRpc: string, login?: Login) {
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
    ...(login && {
      CLUSTER_RESTAPI_BASICAUTHCREDENTIALS: `${login.user}:${login.password}`,
      CLUSTER_PINSVCAPI_BASICAUTHCREDENTIALS: `${login.user}:${login.password}`,
    }),
  }
  const pinningUrl = `http://127.0.0.1:${pinning}`
  runOnce('ipfs-cluster-service', ['init', '--consensus', 'crdt'], { env })
  const server = await run({
    command: 'ipfs-cluster-service',
    args: ['daemon'],
    env,
    isReady: async (output) => {
      if (!output.includes('IPFS Cluster is READY')) return false
      const health = await fetch(`http://127.0.0.1:${rest}/health`).catch(() => undefined)
      return health?.status === 204
    },
    withinMs: 60_000,
  })
  return {
    rest: `http://127.0.0.1:${rest}`,
    pinning: pinningUrl,
    /** What its Pinning Service API takes as a Bearer token from who has the login. */
    async token(): Promise<string> {
      const authorization = `Basic ${Buffer.from(`${login?.user}:${login?.password}`).toString('base64')}`
      const answer = await fetch(`${pinningUrl}/token`, { method: 'POST', headers: { authorization } })
      return ((await answer.json()) as { token: string }).token
    },
    async stop() {
      await server.stop()
      await folder.remove()
    },
  }
}
