// `cidgate/testing`: the contracts of each kind of backend as suites for node:test. Those of
// cidgate pass the same suites.
export type { Content } from './content.ts'
export { type ProviderUnderTest, providerContract } from './provider.ts'
export { type Exception, type TierUnderTest, tierContract } from './tier.ts'
export { type UpstreamUnderTest, upstreamContract } from './upstream.ts'
