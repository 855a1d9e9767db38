// Redis through @keyv/redis, with bytes as they are: the client is told to give back buffers instead of strings.
import { z } from 'zod'
import { duration } from '../../src/config/units.ts'
import type { TierKind } from './contract.ts'
import { createAdapterTier, type KeyvAdapter } from './keyv.ts'

const options = z.strictObject({
  url: z.string().min(1).describe('redis://[user:password@]host:port[/database], or rediss:// with TLS.'),
  prefix: z.string().default('cidgate:').describe('Put before every key.'),
  ttl: duration().optional().describe('How long a block is kept; without it, until Redis lets it go.'),
  timeout: duration().prefault('100ms').describe('A read that takes longer counts as a failure.'),
})

const bulkString = 36 // what the protocol calls values of keys

export const redis: TierKind<typeof options> = {
  use: 'redis',
  options,
  create: ({ url, prefix, ttl, timeout }, context) =>
    createAdapterTier(
      {
        prefix,
        ttlMs: ttl,
        timeoutMs: timeout,
        binary: true,
        traits: { persistent: true, shared: true, trusted: false },
        async adapter() {
          const { createClient, default: KeyvRedis } = await import('@keyv/redis')
          const client = createClient({
            url,
            // A command while the server is away fails at once instead of waiting for it to come back.
            disableOfflineQueue: true,
            socket: { connectTimeout: 1000, reconnectStrategy: (tries: number) => Math.min(50 * 2 ** tries, 2000) },
            commandOptions: { typeMapping: { [bulkString]: Buffer } },
          } as Parameters<typeof createClient>[0])
          client.on('error', () => {}) // the failed command says it too
          const store = new KeyvRedis(client as ConstructorParameters<typeof KeyvRedis>[0], { throwOnErrors: true, throwOnConnectError: true })
          return store as unknown as KeyvAdapter
        },
      },
      context,
    ),
}
