// Rate limits of each client: all requests, and the kinds that cost more. One token bucket per
// client and kind, created on first use.
import { LRUCache } from 'lru-cache'
import { upTo } from '../../core/cache.ts'
import type { Clock } from '../../core/clock.ts'
import { type Budget, createBudget } from '../../core/counting/budget.ts'
import { Failure } from '../../core/failure.ts'
import { clientOf } from './client.ts'
import type { Together } from './together.ts'

/** `misses`: content that no tier has. `exports`: CAR and tar. */
export type CostlyKind = 'misses' | 'exports' | 'uploads'
export type Kind = 'requests' | CostlyKind

/** Requests per minute. */
export type PerClient = {
  readonly perMinute?: number | undefined
  readonly burst?: number | undefined
} & { readonly [Costly in CostlyKind]?: number | undefined }

export interface ClientBudgets {
  /** True if this kind is limited. */
  limits(kind: Kind): boolean
  /** Undefined if this client is not limited. */
  of(kind: Kind, address: string): Budget | undefined
}

export type ClientBudgetOptions = {
  readonly perClient: 'none' | PerClient
  /** Token buckets shared with sibling processes. Default: those of this process. */
  readonly budgets?:
    | ((limit: { readonly size: number; readonly perSecond: number }) => (client: string) => Budget)
    | undefined
  /** Rate limits shared by instances. Default: each instance counts alone. */
  readonly together?: Together | undefined
  readonly clock: Clock
}

const mostClients = 100_000
const none: ClientBudgets = { limits: () => false, of: () => undefined }

export function createClientBudgets({ perClient, budgets, together, clock }: ClientBudgetOptions): ClientBudgets {
  if (perClient === 'none') return none
  const made = new LRUCache<string, Budget>(upTo(mostClients))
  const limits = limitsOf(perClient)

  function make(limit: Limit, key: string): Budget {
    if (together) return together.budget(key, limit)
    return budgets ? budgets(limit)(key) : createBudget({ ...limit, clock })
  }

  return {
    limits: (kind) => limits[kind] !== undefined,
    of(kind, address) {
      const limit = limits[kind]
      if (!limit) return undefined
      const client = clientOf(address)
      const key = kind === 'requests' ? client : `${kind} ${client}`
      let budget = made.get(key)
      if (!budget) {
        budget = make(limit, key)
        made.set(key, budget)
      }
      return budget
    },
  }
}

type Limit = { readonly size: number; readonly perSecond: number }

function limitsOf({ perMinute, burst, misses, exports, uploads }: PerClient): { readonly [One in Kind]?: Limit } {
  const limit = (most: number | undefined, size?: number) =>
    most === undefined ? undefined : { size: size ?? Math.max(1, Math.ceil(most / 4)), perSecond: most / 60 }
  const all = {
    requests: limit(perMinute, burst),
    misses: limit(misses),
    exports: limit(exports),
    uploads: limit(uploads),
  }
  return Object.fromEntries(Object.entries(all).filter(([, one]) => one !== undefined))
}

const words: Readonly<Record<Kind, string>> = {
  requests: 'too many requests from this address (rate limit)',
  misses: 'too many requests from this address for content that is not here yet (rate limit)',
  exports: 'too many CAR and tar exports from this address (rate limit)',
  uploads: 'too many uploads from this address (rate limit)',
}

export const tooMany = (kind: Kind, budget: Budget): Failure =>
  new Failure('throttled', `${words[kind]}; retry later`, { source: 'client', retryAfterMs: budget.waitMs })
