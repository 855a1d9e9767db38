// Every kind of upstream that can be named in the configuration.
import type { UpstreamKind } from './contract.ts'
import { kubo } from './kubo.ts'
import { plain } from './plain.ts'
import { trustless } from './trustless.ts'

const kinds = { trustless, plain, kubo } as const

export const upstreamKinds: Readonly<Record<string, UpstreamKind>> = kinds

/** With the options of each. */
export type UpstreamKinds = typeof kinds
