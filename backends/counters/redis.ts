// Counters in Redis or Valkey: one key with an expiry for each.
import { z } from 'zod'
import { orAborted } from '../../src/core/clock.ts'
import {
  connectRedis,
  explainRedis,
  type LastEvent,
  type RedisClient,
  redisUrl,
  replaceSilent,
} from '../../src/core/wire/redis.ts'
import type { CountersKind } from './contract.ts'

const options = z.strictObject({
  url: z.string().regex(redisUrl.form, { error: redisUrl.expected }).describe(redisUrl.about),
  prefix: z.string().default('cidgate:limit:').describe('Prefix of every key.'),
})

// A call during the first connection attempt waits for it this long.
const openMs = 400

export const redis: CountersKind<typeof options> = {
  use: 'redis',
  options,
  create({ url, prefix }, { userAgent, clock }) {
    const last: LastEvent = { error: undefined }
    let opening: Promise<{ client: RedisClient }> | undefined
    let isClosed = false

    const open = async (): Promise<RedisClient> => {
      opening ??= connectRedis(url, { userAgent, last, waitMs: openMs }).then(({ client, make }) => {
        const held = { client }
        if (isClosed) client.destroy()
        else replaceSilent(held, make, clock)
        return held
      })
      return (await opening).client
    }

    async function within<T>(signal: AbortSignal, call: (client: RedisClient) => Promise<T>): Promise<T> {
      try {
        return await orAborted(signal, open().then(call))
      } catch (error) {
        signal.throwIfAborted()
        throw explainRedis(last.error ?? error, { what: 'limits.sharedStore', source: 'ours' })
      }
    }

    return {
      add: (counts, signal) =>
        within(signal, async (client) => {
          const adding = counts.flatMap(({ key, amount, keptMs }) => [
            client.sendCommand(['SET', prefix + key, '0', 'PX', String(Math.ceil(keptMs)), 'NX']),
            client.sendCommand(['INCRBY', prefix + key, String(amount)]),
          ])
          const answers = await Promise.all(adding)
          const totals = counts.map((_, at) => Number(answers[2 * at + 1]))
          // The key expired between the two commands, so the new one would never expire.
          const endless = counts.filter(({ amount }, at) => answers[2 * at] === null && totals[at] === amount)
          const ends = endless.map(({ key, keptMs }) =>
            client.sendCommand(['PEXPIRE', prefix + key, String(Math.ceil(keptMs))]),
          )
          await Promise.all(ends)
          return totals
        }),
      probe: (signal) =>
        within(signal, async (client) => {
          await client.sendCommand(['INCRBY', `${prefix}probe`, '1'])
          await client.sendCommand(['PEXPIRE', `${prefix}probe`, '1000'])
        }),
      async close() {
        isClosed = true
        const held = await opening?.catch(() => undefined)
        if (held?.client.isOpen) held.client.destroy()
      },
    }
  },
}
