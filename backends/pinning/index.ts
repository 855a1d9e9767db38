// Every kind of provider that can be named in the configuration.
import type { ProviderKind } from './contract.ts'
import { embedded } from './embedded.ts'

export const providerKinds: Readonly<Record<string, ProviderKind>> = { embedded }
