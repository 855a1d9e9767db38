// The stores of shared counters that a configuration can name.
import type { CountersKind } from './contract.ts'
import { redis } from './redis.ts'

const kinds = { redis } as const

export const counterKinds: Readonly<Record<string, CountersKind>> = kinds

/** With their options. */
export type CounterKinds = typeof kinds
