// The tallies that a configuration can name.
import type { TallyKind } from './contract.ts'
import { redis } from './redis.ts'

const kinds = { redis } as const

export const tallyKinds: Readonly<Record<string, TallyKind>> = kinds

/** With their options. */
export type TallyKinds = typeof kinds
