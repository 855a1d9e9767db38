// The routing side: this gateway's identity, addresses and the CIDs that it holds.
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import type { LocalStore, Provider } from '../../backends/pinning/contract.ts'
import { addressesOf, type Identity, identityIn } from '../announce/advertisement.ts'
import { createChain } from '../announce/chain.ts'
import { createPublisher, type Publisher } from '../announce/publisher.ts'
import { ConfigError } from '../config/complaints.ts'
import type { Config } from '../config/load.ts'
import { isFailure, wordsOf } from '../core/failure.ts'
import type { Route } from '../http/route.ts'
import { createIpniRoute, createRoutingRoute, type Self } from '../http/routing.ts'
import type { Store } from '../store/store.ts'
import { openIndexer } from './backends.ts'
import type { WiringContext } from './components.ts'
import type { Public } from './public.ts'
import type { ReadSide } from './reading.ts'

/** The key file in the data folder. */
const keyFile = 'identity.pem'

/** Throws a ConfigError if the key cannot be read. */
function takeIdentity({ config, lease }: WiringContext): Identity {
  const file = join(config.data, keyFile)
  return lease.take('identity', [file], () => {
    try {
      return identityIn(file)
    } catch (error) {
      throw new ConfigError([`public: ${wordsOf(error)}; put the key back, or remove the file to become another peer`])
    }
  })
}

/** No routes without `public`; no publisher if `announce` is off. */
export function wireRouting(
  context: WiringContext,
  parts: Pick<Public, 'respond'> & {
    readonly store: Store
    readonly providers: readonly Provider[]
    readonly former: readonly Provider[]
    readonly reading: Pick<ReadSide, 'denials' | 'names'>
  },
): { readonly routes: readonly Route[]; readonly publisher?: Publisher } {
  const { config, clock } = context
  if (config.public === undefined) return { routes: [] }
  const { store, providers, former, respond } = parts
  const { denials, names } = parts.reading
  const identity = takeIdentity(context)
  const self: Self = { peerId: identity.peerId, addresses: addressesOf(new URL(config.public)) }
  const stores = [...providers, ...former].flatMap((one) => (one.traits.local && one.store ? [one.store] : []))
  const holds = async (cid: CID) => !isDenied(denials, cid) && (await someHas(stores, cid))
  const routes = [createRoutingRoute({ self, holds, names, respond, clock })]
  if (config.announce === false) return { routes }
  const { chain, publisher } = takePublisher(context, config.announce, { store, self, identity, denials })
  return { routes: [...routes, createIpniRoute({ chain, identity, respond })], publisher }
}

function isDenied({ lists }: ReadSide['denials'], cid: CID): boolean {
  try {
    lists.visit(cid, [])
    return false
  } catch (error) {
    if (isFailure(error, 'denied')) return true
    throw error
  }
}

async function someHas(stores: readonly LocalStore[], cid: CID): Promise<boolean> {
  for (const store of stores) if (await store.has(cid)) return true
  return false
}

type Announcing = {
  readonly store: Store
  readonly self: Self
  readonly identity: Identity
  readonly denials: ReadSide['denials']
}

function takePublisher(
  { config, userAgent, clock, log, lease }: WiringContext,
  announce: Exclude<Config['announce'], false>,
  { store, self, identity, denials }: Announcing,
) {
  const { addresses } = self
  // The publisher is passed to the next gateway, which may have other denylists.
  const newest = lease.take('newest denials of what is announced', [config.data], () => ({ denials }))
  newest.denials = denials
  return lease.take(
    'announcing',
    [announce, self, userAgent, store],
    () => {
      const chain = createChain({
        ...{ store, identity, addresses, blocks: announce.entries === 'blocks' },
        isDenied: (cid) => isDenied(newest.denials, cid),
        denyRevision: () => newest.denials.lists.revision,
      })
      const indexers = announce.indexers.map((one) => openIndexer(one, { userAgent, clock }))
      const publishing = { chain, identity, addresses, indexers, clock, log, everyMs: announce.every }
      return { chain, publisher: createPublisher(publishing) }
    },
    (one) => one.publisher.close(),
  )
}
