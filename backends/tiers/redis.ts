// Redis (and Valkey) through Keyv. Blocks are plain Redis strings of raw bytes. The client is ours
// and always open: left to @keyv/redis it would wait for a server that is away, where this one
// answers at once that it is.
import { z } from 'zod'
import type { Clock } from '../../src/core/clock.ts'
import { duration, lifetime } from '../../src/core/units.ts'
import {
  connectRedis,
  connectTimeoutMs,
  explainRedis,
  type LastEvent,
  type RedisClient,
  redisUrl,
  replaceSilent,
} from '../../src/core/wire/redis.ts'
import type { TierKind } from './contract.ts'
import { createKeyvTier, type KeyvStore, type RecordSteps, readsFirst } from './keyv-tier.ts'

const options = z.strictObject({
  url: z.string().regex(redisUrl.form, { error: redisUrl.expected }).describe(redisUrl.about),
  ttl: lifetime()
    .optional()
    .describe('Expiry of a block. By default none: set maxmemory and an eviction policy in Redis.'),
  prefix: z.string().default('cidgate:block:').describe('Prefix of every key.'),
  timeout: duration().prefault('500ms').describe('Timeout of a read. A write may take ten times that.'),
})

// A record is never empty: '' stands for nothing there.
const script = `if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`

type Scripted = {
  readonly client: {
    eval(script: string, how: { readonly keys: string[]; readonly arguments: (string | Buffer)[] }): Promise<unknown>
  }
}

/**
 * A script compares and writes a record in one step. Where scripts are not allowed, the record is
 * read, then written: not atomic.
 */
const records: RecordSteps = {
  read: readsFirst.read,
  async replace(keyv, key, bytes, how, signal) {
    const { expected, keepMs } = how
    const { client } = keyv.store as Scripted
    const held = expected === undefined ? '' : Buffer.from(expected.bytes)
    try {
      return (await client.eval(script, { keys: [key], arguments: [held, bytes, String(Math.ceil(keepMs))] })) === 1
    } catch (error) {
      if (!(error instanceof Error) || !/^(NOPERM|ERR unknown command)/.test(error.message)) throw error
      return readsFirst.replace(keyv, key, bytes, how, signal)
    }
  },
}

export const redis: TierKind<typeof options> = {
  use: 'redis',
  options,
  create({ url, ttl, prefix, timeout }, { name, userAgent, log, clock }) {
    const last: LastEvent = { error: undefined }
    return createKeyvTier({
      name,
      traits: { persistent: true, shared: true, trusted: false },
      clock,
      log,
      open: () => connect(url, { userAgent, last, waitMs: timeout / 2 }, clock),
      binary: true,
      records,
      prefix,
      ttlMs: ttl,
      timeoutMs: timeout,
      explain: (error) => explainRedis(last.error ?? error, { what: `tier ${name}`, source: 'tier' }),
    })
  },
}

async function connect(url: string, how: Parameters<typeof connectRedis>[1], clock: Clock): Promise<KeyvStore> {
  const { library, client, make } = await connectRedis(url, how)
  const store = new library.default(client as never, {
    throwOnErrors: true,
    throwOnConnectError: true,
    connectionTimeout: connectTimeoutMs,
  })
  replaceSilent(store as unknown as { client: RedisClient }, make, clock)
  return store as unknown as KeyvStore
}
