// storetheindex, the indexer of IPNI, with its Pebble store: offline, on free loopback ports.
import { freePort, type Running, run, runOnce, tempFolder } from './processes.ts'

export type Indexer = {
  /** Where it is asked who has a CID. */
  readonly finder: string
  /** Where it is told of a chain. */
  readonly ingest: string
  /** Whether it names anybody for this CID. */
  knows(cid: string): Promise<boolean>
  /** What it says after it was told to read the head of this peer by itself; throws with its error. */
  sync(peerId: string, address: string): string
  /** What it logged. */
  output(): string
  stop(): Promise<void>
}

export async function startStoretheindex(): Promise<Indexer> {
  const folder = await tempFolder()
  const env = { STORETHEINDEX_PATH: folder.path }
  const [admin, finder, ingest, p2p] = [await freePort(), await freePort(), await freePort(), await freePort()]
  const listen = (name: string, port: number) => [`--listen-${name}`, `/ip4/127.0.0.1/tcp/${port}`]
  const places = [
    ...[...listen('admin', admin), ...listen('finder', finder)],
    ...[...listen('ingest', ingest), ...listen('p2p', p2p)],
  ]
  let server: Running | undefined
  try {
    runOnce('storetheindex', ['init', '--store', 'pebble', '--no-bootstrap', ...places], { env })
    server = await run({
      command: 'storetheindex',
      args: ['daemon'],
      env,
      isReady: (output) => output.includes('Indexer is ready'),
      withinMs: 60_000,
    })
  } catch (error) {
    await folder.remove()
    throw error
  }
  const started = server
  return {
    finder: `http://127.0.0.1:${finder}`,
    ingest: `http://127.0.0.1:${ingest}`,
    async knows(cid) {
      const answer = await fetch(`http://127.0.0.1:${finder}/cid/${cid}`)
      await answer.arrayBuffer()
      return answer.status === 200
    },
    sync: (peerId, address) =>
      runOnce('storetheindex', ['admin', 'sync', '-i', `http://127.0.0.1:${admin}`, '-p', peerId, '--addr', address], {
        env,
      }),
    output: started.output,
    async stop() {
      await started.stop()
      await folder.remove()
    },
  }
}
