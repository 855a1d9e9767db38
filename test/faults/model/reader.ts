// A second gateway, as an instance on another machine: it shares the store, and has neither an upstream nor a pin.
import { startGateway, type TestGateway } from '../../support/gateway.ts'
import type { ModelStore } from './stores.ts'

export type Reader = {
  readonly url: string
  /** Another one in its place, with an empty memory. */
  renew(): Promise<void>
  close(): Promise<void>
}

export async function createReader(store: ModelStore): Promise<Reader> {
  let running = await start(store)
  return {
    get url() {
      return running.gateway.url
    },
    async renew() {
      await running.close()
      running = await start(store)
    },
    close: () => running.close(),
  }
}

async function start(store: ModelStore): Promise<{ readonly gateway: TestGateway; close(): Promise<void> }> {
  const way = await store.way()
  const gateway = await startGateway({
    own: { tiers: way.tiers },
    config: {
      retrieval: { timeout: '20s' },
      cache: { tiers: [{ use: 'memory', maxBytes: '16MiB' }, ...way.entries] },
      pinning: { providers: [] },
    },
  })
  return {
    gateway,
    async close() {
      await gateway.close()
      await way.cut()
    },
  }
}
