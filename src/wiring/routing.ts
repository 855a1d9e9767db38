// The routing side: this gateway's identity, addresses and the CIDs that it holds.
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import type { LocalStore } from '../../backends/pinning/contract.ts'
import { addressesOf, type Identity, identityIn } from '../announce/advertisement.ts'
import { type Chain, createChain } from '../announce/chain.ts'
import { createPublisher, type Publisher } from '../announce/publisher.ts'
import { ConfigError } from '../config/complaints.ts'
import { isFailure, wordsOf } from '../core/failure.ts'
import type { Route } from '../http/add/add.ts'
import { createIpniRoute, createRoutingRoute, type Self } from '../http/routing.ts'
import { openIndexer } from './backends.ts'
import type { ReadSide } from './reading.ts'
import type { UploadParts } from './uploads.ts'
import type { WiringContext } from './wiring-context.ts'

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

export type Routing = {
  readonly routes: readonly Route[]
  /** Undefined if `announce` is off. */
  readonly publisher?: Publisher | undefined
}

/** Returns no routes without `public`. */
export function wireRouting(
  context: WiringContext,
  parts: Pick<UploadParts, 'store' | 'providers' | 'former' | 'respond'> & {
    readonly reading: Pick<ReadSide, 'denials' | 'names'>
  },
): Routing {
  const { store, providers, former, reading, respond } = parts
  const { config, clock } = context
  if (config.public === undefined) return { routes: [] }
  const identity = takeIdentity(context)
  const self: Self = { peerId: identity.peerId, addresses: addressesOf(new URL(config.public)) }
  const stores = [...providers, ...former].flatMap(({ traits, store }) => (traits.local && store ? [store] : []))
  const { denials, names } = reading
  const denied = (cid: CID) => isDenied(denials, cid)
  const holds = async (cid: CID) => !denied(cid) && (await someHas(stores, cid))
  const announcing = wireAnnouncing(context, { store, self, identity, denials, isDenied: denied, respond })
  const route = createRoutingRoute({ self, holds, names, respond, clock })
  return { routes: announcing ? [route, announcing.route] : [route], publisher: announcing?.publisher }
}

function isDenied({ visit }: ReadSide['denials'], cid: CID): boolean {
  try {
    visit(cid, [])
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

/** Undefined if `announce` is off. */
function wireAnnouncing(
  context: WiringContext,
  parts: Pick<UploadParts, 'store' | 'respond'> & {
    readonly self: Self
    readonly identity: Identity
    readonly denials: ReadSide['denials']
    readonly isDenied: (cid: CID) => boolean
  },
) {
  const { store, self, identity, denials, isDenied, respond } = parts
  const { config, userAgent, clock, log, lease } = context
  const { announce, data } = config
  if (announce === false) return undefined
  // The publisher is passed to the next gateway, which may have other denylists.
  const newest = lease.take('newest denials of what is announced', [data], () => ({ isDenied, lists: denials.lists }))
  Object.assign(newest, { isDenied, lists: denials.lists })
  const { chain, publisher } = lease.take(
    'announcing',
    [announce, self, userAgent, store],
    () => {
      const addresses = self.addresses
      const made: Chain = createChain({
        ...{ store, identity, addresses, blocks: announce.entries === 'blocks' },
        isDenied: (cid) => newest.isDenied(cid),
        denyRevision: () => newest.lists.revision,
      })
      const indexers = announce.indexers.map((one) => openIndexer(one, { userAgent, clock }))
      return {
        chain: made,
        publisher: createPublisher({
          ...{ chain: made, identity, addresses, indexers, clock, log },
          everyMs: announce.every,
        }),
      }
    },
    (one) => one.publisher.close(),
  )
  return { route: createIpniRoute({ chain, identity, respond }), publisher }
}
