// A connection to Redis or Valkey that reconnects on its own. A command made while the server is
// away fails at once.
import { type Clock, onceLate } from '../clock.ts'
import { Failure, type FailureSource } from '../failure.ts'
import { isMissingPackage, packageOf } from '../packages.ts'

export const redisUrl = {
  form: /^(redis|rediss|unix):\/\/./,
  expected: 'expected redis://… or rediss://…',
  about: 'redis://[user:password@]host:port[/database]',
} as const

const connectMs = 1000
// The server is pinged at this interval; after `silentMs` without a reply, a new connection is
// tried.
const pingMs = 1000
const silentMs = 2000
// Also limits the time to connect.
const quietMs = 5000
const maxBackOffMs = 1000
// RESP's bulk string, `$`: replies of this type are returned as bytes, not text.
const bulkString = 36

type Library = typeof import('@keyv/redis')
export type RedisClient = ReturnType<Library['createClient']>

/** While disconnected every command fails with "offline"; the reason is in the last event. */
export type LastEvent = { error: unknown }

type RedisConnection = {
  readonly library: Library
  readonly client: RedisClient
  /** Creates an identical client that is not connected. */
  readonly make: () => RedisClient
}

/** Resolves when the client is connected, or after `waitMs`. */
export async function connectRedis(
  url: string,
  how: { readonly userAgent: string; readonly last: LastEvent; readonly waitMs: number },
): Promise<RedisConnection> {
  const { userAgent, last, waitMs } = how
  const library = await packageOf('@keyv/redis', () => import('@keyv/redis'))
  const make = (): RedisClient => {
    // The library generates a class with all commands for each configuration that differs from the
    // previous one, which takes 10 ms or more; a duplicate reuses the class of a client without
    // options.
    const made = library.createClient().duplicate({
      url,
      // Shown in CLIENT LIST; Redis allows no spaces in it.
      clientInfoTag: userAgent.replaceAll(/[^!-~]+/g, '-'),
      disableOfflineQueue: true,
      commandsQueueMaxLength: 4096,
      socket: {
        connectTimeout: connectMs,
        socketTimeout: quietMs,
        reconnectStrategy: (retries) =>
          Math.min(2 ** Math.min(retries, 10) * 50, maxBackOffMs) * (0.75 + Math.random() / 2),
      },
      commandOptions: { typeMapping: { [bulkString]: Buffer } },
    })
    made.on('error', (error) => {
      last.error = error
    })
    made.on('ready', () => {
      last.error = undefined
    })
    return made as unknown as RedisClient
  }
  const client = make()
  // connect() retries for as long as the client is open; only destroy() ends this promise early.
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
  return { library, client, make }
}

/**
 * A half-open connection accepts writes, which keep resetting the library's own socket timeout. So
 * the server is pinged. If it stays silent, a second connection is opened, and the first to respond
 * is kept. Ends when the current client is destroyed.
 */
export function replaceSilent(holder: { client: RedisClient }, make: () => RedisClient, clock: Clock): void {
  const ask = (): void => {
    const { client } = holder
    if (!client.isOpen) return
    let other: RedisClient | undefined
    let hasAnswered = false
    const replace = (): void => {
      if (hasAnswered || !client.isOpen || !other) return
      holder.client = other
      client.destroy()
    }
    const stop = onceLate(clock, silentMs, () => {
      other = make()
      other.connect().then(replace, () => {})
    })
    const again = (): void => {
      hasAnswered = true
      stop()
      if (other?.isOpen && holder.client !== other) other.destroy()
      clock.after(pingMs, ask)
    }
    if (client.isReady) client.ping().then(again, again)
    else again()
  }
  clock.after(pingMs, ask)
}

export const connectTimeoutMs = connectMs

/** Redis names the error in the first word, in capitals; the rest may contain secrets. */
export function explainRedis(cause: unknown, { what, source }: { what: string; source: FailureSource }): Failure {
  if (isMissingPackage(cause)) return new Failure('unsupported', `${what}: ${cause.message}`, { source, cause })
  const word = cause instanceof Error ? (/^[A-Z]{3,}\b/.exec(cause.message)?.[0] ?? cause.constructor.name) : 'an error'
  if (/^(NOAUTH|WRONGPASS|NOPERM)$/.test(word)) {
    const message = `${what}: Redis refused the connection (${word}); check the user and password in its url`
    return new Failure('refused', message, { source, cause })
  }
  return new Failure('upstream-error', `${what}: Redis failed (${word}); check its server`, { source, cause })
}
