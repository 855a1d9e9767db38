// The tiers that a configuration can name, one line each.
import type { TierKind } from './contract.ts'
import { disk } from './disk.ts'
import { keyv } from './keyv.ts'
import { memory } from './memory.ts'
import { redis } from './redis.ts'
import { s3 } from './s3.ts'

const kinds = { memory, disk, redis, s3, keyv } as const

export const tierKinds: Readonly<Record<string, TierKind>> = kinds

/** With the options of each. */
export type TierKinds = typeof kinds
