// Options of every provider that speaks HTTP.
import { z } from 'zod'
import { duration, headerToken, serviceUrl } from '../../src/core/units.ts'
import type { ReadBack } from './contract.ts'

export const clocks = {
  connectTimeout: duration().prefault('3s').describe('Time to connect.'),
  idleTimeout: duration().prefault('30s').describe('Longest time without a byte from the service.'),
} as const

export const auth = () =>
  z
    .union([
      z.literal('none'),
      z.strictObject({
        basic: z
          .string()
          .min(3)
          .refine((text) => text.includes(':'), 'expected user:password')
          .describe('user:password'),
      }),
      z.strictObject({ bearer: headerToken().describe('A token.') }),
    ])
    .default('none')
    .describe('Credentials for its API.')

/** The gateway for reading a provider's content. `byDefault`: a sentence of its description. */
export const gateway = (byDefault: string) =>
  z
    .union([
      z.literal(false),
      serviceUrl(),
      z.strictObject({
        url: serviceUrl(),
        use: z.enum(['trustless', 'plain']).default('trustless').describe('What it can do (docs/upstreams.md).'),
        headers: z.record(z.string(), z.string()).default({}).describe('Sent with every request, such as a key.'),
      }),
    ])
    .optional()
    .describe(
      `Where what it holds is read back, without /ipfs: an address, or { url, use, headers }. ${byDefault} false: it is not read back.`,
    )

type GatewayOption = z.output<ReturnType<typeof gateway>>

/** The operator named the address, so it may be in a private network. */
export function readGateway(said: GatewayOption, connectMs: number): ReadBack | false | undefined {
  if (said === undefined || said === false) return said
  const { url, use, headers } = typeof said === 'string' ? { url: said, use: 'trustless', headers: {} } : said
  return { use, options: { url, headers, connectTimeout: `${connectMs}ms`, allowPrivate: true } }
}
