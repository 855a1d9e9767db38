// Assembles announcing: the chain in the store, the routes that serve it, and the indexers that are
// notified.
import type { CID } from 'multiformats/cid'
import { type Chain, createChain } from '../announce/chain.ts'
import type { Identity } from '../announce/identity.ts'
import { createPublisher, type Publisher } from '../announce/publisher.ts'
import type { Route } from '../http/add/add.ts'
import { createIpniRoute } from '../http/routing/ipni.ts'
import type { Self } from '../http/routing/routing.ts'
import type { Store } from '../store/store.ts'
import { openIndexer } from './backends.ts'
import type { Public } from './public/public.ts'
import type { ReadSide } from './reading.ts'
import type { Whole } from './whole.ts'

export type Announcing = {
  readonly route: Route
  readonly publisher: Publisher
}

/** Undefined if `announce` is off. */
export function wireAnnouncing(
  whole: Whole,
  {
    store,
    self,
    identity,
    denials,
    isDenied,
    respond,
  }: {
    readonly store: Store
    readonly self: Self
    readonly identity: Identity
    readonly denials: ReadSide['denials']
    readonly isDenied: (cid: CID) => boolean
    readonly respond: Public['respond']
  },
): Announcing | undefined {
  const { config, clock, log, lease } = whole
  const { announce, data, retrieval } = config
  if (announce === false) return undefined
  const { userAgent } = retrieval
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
