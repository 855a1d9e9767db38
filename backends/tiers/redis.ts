// Redis (and Valkey) through Keyv. Blocks are plain Redis strings of raw bytes. The client is ours and always open: left to
// @keyv/redis it would wait for a server that is away, where this one answers at once that it is.
import { z } from 'zod'
import { Failure } from '../../src/core/failure.ts'
import { isMissingPackage, packageOf } from '../../src/core/packages.ts'
import { duration, lifetime } from '../../src/core/units.ts'
import type { TierKind } from './contract.ts'
import { looksFirst, type RecordSteps } from './keyv-records.ts'
import { createKeyvTier, type KeyvStore } from './keyv-tier.ts'

const options = z.strictObject({
  url: z
    .string()
    .regex(/^(redis|rediss|unix):\/\/./, { error: 'expected redis://… or rediss://…' })
    .describe('redis://[user:password@]host:port[/database]'),
  ttl: lifetime().optional().describe('How long a block stays. By default until Redis evicts it: set maxmemory there.'),
  prefix: z.string().default('cidgate:block:').describe('What every key begins with.'),
  timeout: duration()
    .prefault('500ms')
    .describe('A read that takes longer is given up. A write may take ten times that.'),
})

const leastOpenMs = 400
const connectMs = 1000
// A server that has gone silent: the client asks every two seconds, and a socket quiet for five is made anew.
const pingMs = 2000
const silentMs = 5000
const mostBackOffMs = 5000
// RESP's bulk string, `$`: replies of this type come as bytes and not as text.
const bulkString = 36

// A record is never empty: '' stands for nothing there.
const script = `if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`

type Scripted = {
  readonly client: {
    eval(script: string, how: { readonly keys: string[]; readonly arguments: (string | Buffer)[] }): Promise<unknown>
  }
}

/** A script compares and writes a record in one step. Where scripts are not allowed, it is looked first. */
const records: RecordSteps = {
  read: looksFirst.read,
  async replace(keyv, key, bytes, how, signal) {
    const { over, keepMs } = how
    const { client } = keyv.store as Scripted
    const held = over === undefined ? '' : Buffer.from(over.bytes)
    try {
      return (await client.eval(script, { keys: [key], arguments: [held, bytes, String(Math.ceil(keepMs))] })) === 1
    } catch (error) {
      if (!(error instanceof Error) || !/^(NOPERM|ERR unknown command)/.test(error.message)) throw error
      return looksFirst.replace(keyv, key, bytes, how, signal)
    }
  },
}

export const redis: TierKind<typeof options> = {
  use: 'redis',
  options,
  create({ url, ttl, prefix, timeout }, { name, userAgent, log, clock }) {
    // While it is away every command fails with "offline"; why is in the last event.
    const last: { error: unknown } = { error: undefined }
    const openMs = Math.max(leastOpenMs, timeout)
    return createKeyvTier({
      name,
      traits: { persistent: true, shared: true, trusted: false },
      clock,
      log,
      open: () => connect(url, userAgent, last, openMs / 2),
      shut: async (store) => shut(store),
      binary: true,
      records,
      prefix,
      ttlMs: ttl,
      timeoutMs: timeout,
      writeTimeoutMs: timeout * 10,
      openMs,
      explain: (error) => explain(name, last.error ?? error),
    })
  },
}

async function connect(url: string, userAgent: string, last: { error: unknown }, waitMs: number): Promise<KeyvStore> {
  const { default: KeyvRedis, createClient } = await packageOf('@keyv/redis', () => import('@keyv/redis'))
  // The library makes a class with all commands for each configuration that differs from the last one, 10 ms and more; a
  // duplicate shares the class of a client without any.
  const client = createClient().duplicate({
    url,
    // In CLIENT LIST; Redis takes no spaces in it.
    clientInfoTag: userAgent.replaceAll(/[^!-~]+/g, '-'),
    disableOfflineQueue: true,
    commandsQueueMaxLength: 4096,
    pingInterval: pingMs,
    socket: {
      connectTimeout: connectMs,
      socketTimeout: silentMs,
      reconnectStrategy: (retries) =>
        Math.min(2 ** Math.min(retries, 10) * 50, mostBackOffMs) * (0.75 + Math.random() / 2),
    },
    commandOptions: { typeMapping: { [bulkString]: Buffer } },
  })
  client.on('error', (error) => {
    last.error = error
  })
  client.on('ready', () => {
    last.error = undefined
  })
  const store = new KeyvRedis(client as never, {
    throwOnErrors: true,
    throwOnConnectError: true,
    connectionTimeout: connectMs,
  })
  // It keeps trying for as long as it is open; a call made meanwhile fails at once. Only destroy() ends this promise early.
  const ready = client.connect().then(
    () => {},
    () => {},
  )
  let wait: NodeJS.Timeout | undefined
  const enough = new Promise<void>((resolve) => {
    wait = setTimeout(resolve, waitMs)
  })
  await Promise.race([ready, enough])
  clearTimeout(wait)
  return store as unknown as KeyvStore
}

function shut(store: KeyvStore): void {
  if ('client' in store && store.client instanceof Object && 'destroy' in store.client) {
    const { client } = store as { client: { isOpen: boolean; destroy(): void } }
    if (client.isOpen) client.destroy()
  }
}

/** Redis says what is wrong in the first word of an error, in capitals; the rest may name what it should not. */
function explain(name: string, cause: unknown): Failure {
  if (isMissingPackage(cause))
    return new Failure('unsupported', `tier ${name}: ${cause.message}`, { source: 'tier', cause })
  const word = cause instanceof Error ? (/^[A-Z]{3,}\b/.exec(cause.message)?.[0] ?? cause.constructor.name) : 'an error'
  if (/^(NOAUTH|WRONGPASS|NOPERM)$/.test(word)) {
    const message = `tier ${name}: Redis refused the connection (${word}); check the user and password in its url`
    return new Failure('refused', message, { source: 'tier', cause })
  }
  return new Failure('broken', `tier ${name}: Redis failed (${word}); check its server`, { source: 'tier', cause })
}
