// What this gateway tells other nodes of itself: who it is, how it is reached, and what it holds for good.
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import type { LocalStore, Provider } from '../../backends/pinning/contract.ts'
import { type Identity, identityIn } from '../announce/identity.ts'
import { addressesOf } from '../announce/multiaddr.ts'
import { ConfigError } from '../config/complaints.ts'
import { isFailure, wordsOf } from '../core/failure.ts'
import type { Route } from '../http/add/add.ts'
import { createRoutingRoute, type Self } from '../http/routing/routing.ts'
import type { Public } from './public/public.ts'
import type { ReadSide } from './reading.ts'
import type { Whole } from './whole.ts'

/** The name of the key's file in the data folder. */
const keyFile = 'identity.pem'

/** Throws a ConfigError for a key that cannot be read. */
export function takeIdentity({ config, lease }: Whole): Identity {
  const file = join(config.data, keyFile)
  return lease.take('identity', [file], () => {
    try {
      return identityIn(file)
    } catch (error) {
      throw new ConfigError([`public: ${wordsOf(error)}; put the key back, or remove the file to become another peer`])
    }
  })
}

/** No routes without `public`. */
export function wireRouting(
  whole: Whole,
  {
    providers,
    left,
    reading,
    respond,
  }: {
    readonly providers: readonly Provider[]
    readonly left: readonly Provider[]
    readonly reading: Pick<ReadSide, 'denials' | 'names'>
    readonly respond: Public['respond']
  },
): readonly Route[] {
  const { config, clock } = whole
  if (config.public === undefined) return []
  const { peerId } = takeIdentity(whole)
  const self: Self = { peerId, addresses: addressesOf(new URL(config.public)) }
  const stores = [...providers, ...left].flatMap(({ traits, store }) => (traits.local && store ? [store] : []))
  const { denials, names } = reading
  const holds = async (cid: CID) => !isDenied(denials, cid) && (await someHas(stores, cid))
  return [createRoutingRoute({ self, holds, names, respond, clock })]
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
