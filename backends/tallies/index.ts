// The tallies that a configuration can name, one line each.
import type { TallyKind } from './contract.ts'
import { redis } from './redis.ts'

const kinds = { redis } as const

export const tallyKinds: Readonly<Record<string, TallyKind>> = kinds

/** With the options of each. */
export type TallyKinds = typeof kinds
