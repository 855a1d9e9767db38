// The kinds of providers that a configuration can name.
import { cluster } from './cluster.ts'
import type { ProviderKind } from './contract.ts'
import { embedded } from './embedded.ts'
import { filebase } from './filebase.ts'
import { forward } from './forward.ts'
import { kubo } from './kubo.ts'
import { pinata } from './pinata.ts'
import { psa } from './psa.ts'
import { withoutSecrets } from './secrets.ts'

const kinds = {
  embedded,
  kubo,
  cluster,
  pinata,
  filebase,
  psa,
  forward,
} as const

export const providerKinds: Readonly<Record<string, ProviderKind>> = Object.fromEntries(
  Object.entries<ProviderKind>(kinds).map(([use, kind]) => [use, withoutSecrets(kind)]),
)

/** With their options. */
export type ProviderKinds = typeof kinds
