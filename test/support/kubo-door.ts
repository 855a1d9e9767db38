// A server with Kubo's door open, over real tiers and the embedded store, without upstreams.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import express from 'express'
import type { LocalStore } from '../../backends/pinning/contract.ts'
import { tierKinds } from '../../backends/tiers/index.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { createTokens, type Token } from '../../src/http/add/upload-auth.ts'
import { createKuboRoute } from '../../src/http/kubo/rpc.ts'
import { createRespond } from '../../src/http/wire/problem.ts'
import { readContext } from '../../src/http/wire/request.ts'
import { createNegativeCache } from '../../src/retrieval/negative-cache.ts'
import type { Retrieval } from '../../src/retrieval/retrieval.ts'

import { createPinsTier } from '../../src/retrieval/tiers/tier-stack.ts'
import { type Adding, type AddingOptions, startAdding } from './adding.ts'
import { retrievalOver } from './members.ts'
import { stackOf } from './scripted-tier.ts'

export type KuboDoor = {
  readonly url: string
  readonly adding: Adding
  readonly retrieval: Retrieval
  readonly log: Adding['log']
  close(): Promise<void>
}

export async function startKuboDoor(tokens?: readonly Token[], options: AddingOptions = {}): Promise<KuboDoor> {
  const [log, clock] = [silentLog, systemClock]
  const memory = tierKinds['memory']
  if (!memory) throw new Error('there is no memory tier')
  const tier = memory.create(memory.options.parse({ maxBytes: '64MiB' }), {
    name: 'memory',
    userAgent: 'cidgate/test',
    data: '',
    log,
    clock,
  })
  // As in a gateway, what the embedded provider keeps is read from there. It is made below, of the retrieval.
  const store: LocalStore = {
    get: (cid) => adding.embedded.store.get(cid),
    has: (cid) => adding.embedded.store.has(cid),
  }
  const { retrieval } = retrievalOver([], clock, {
    stack: stackOf([tier, createPinsTier('embedded', store, true)], { clock, log }),
    ...{ deadlineMs: 1000, blockDeadlineMs: 1000, keepLookingMs: 0 },
    notFound: createNegativeCache({ initialTtlMs: 1, maxTtlMs: 1, clock }),
  })
  const adding: Adding = await startAdding({ retrieval, maxBytes: 20_000_000, ...options })
  const lines: Adding['log'] = []
  const app = express()
  const route = createKuboRoute({
    uploads: adding.uploads,
    retrieval,
    tokens: createTokens(tokens ? { tokens } : 'none'),
    reach: { isForThisMachine: false, addressOf: () => '' },
    clientOf: () => '',
    version: '0.0.0',
    log: (_level, event, facts = {}) => lines.push({ event, facts }),
    tiers: [],
    limits: { charge: () => undefined },
    stalledMs: 1000,
    clock,
    respond: createRespond({
      mode: 'api',
      stalledMs: 1000,
      onError: (error) => {
        throw error
      },
    }),
  })
  app.all(route.at, (request, response, next) => route.answer(readContext(request, response), next))
  const server = createServer(app)
  server.on('checkContinue', app)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    adding,
    retrieval,
    log: lines,
    async close() {
      server.closeAllConnections()
      server.close()
      await adding.close()
      await retrieval.close()
    },
  }
}
