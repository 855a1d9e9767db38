// The kinds of upstreams that a configuration can name.

import { isInside } from './connect.ts'
import type { UpstreamKind } from './contract.ts'
import { indexerOptions, openIndexer } from './indexer.ts'
import { kubo } from './kubo.ts'
import { plain } from './plain.ts'
import { openRouter, type RouterClient, type RouterOptions, routerOptions } from './router.ts'
import { trustless } from './trustless.ts'

export { indexerOptions, isInside, openIndexer, openRouter, type RouterClient, type RouterOptions, routerOptions }

const kinds = { trustless, plain, kubo } as const

export const upstreamKinds: Readonly<Record<string, UpstreamKind>> = kinds

/** With their options. */
export type UpstreamKinds = typeof kinds
