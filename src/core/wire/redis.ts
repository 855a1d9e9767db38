// A connection to Redis or Valkey that is always open: it keeps trying while the server is away, and a command made meanwhile fails
// at once. For every kind of backend that speaks to one.
import type { Clock } from '../clock.ts'
import { onceLate } from '../deadline.ts'
import { Failure, type FailureSource } from '../failure.ts'
import { isMissingPackage, packageOf } from '../packages.ts'

export const redisUrl = {
  form: /^(redis|rediss|unix):\/\/./,
  expected: 'expected redis://… or rediss://…',
  about: 'redis://[user:password@]host:port[/database]',
} as const

const connectMs = 1000
// The server is asked whether it is there; who says nothing for so long is asked over a new connection.
const pingMs = 1000
const silentMs = 2000
// Until it has taken up the connection, too.
const quietMs = 5000
const mostBackOffMs = 1000
// RESP's bulk string, `$`: replies of this type come as bytes and not as text.
const bulkString = 36

type Library = typeof import('@keyv/redis')
export type RedisClient = ReturnType<Library['createClient']>

/** While it is away every command fails with "offline"; why is in the last event. */
export type LastEvent = { error: unknown }

export type RedisConnection = {
  readonly library: Library
  readonly client: RedisClient
  /** Another one like it, which is not connected. */
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
    // The library makes a class with all commands for each configuration that differs from the last one, 10 ms and more; a
    // duplicate shares the class of a client without any.
    const made = library.createClient().duplicate({
      url,
      // In CLIENT LIST; Redis takes no spaces in it.
      clientInfoTag: userAgent.replaceAll(/[^!-~]+/g, '-'),
      disableOfflineQueue: true,
      commandsQueueMaxLength: 4096,
      socket: {
        connectTimeout: connectMs,
        socketTimeout: quietMs,
        reconnectStrategy: (retries) =>
          Math.min(2 ** Math.min(retries, 10) * 50, mostBackOffMs) * (0.75 + Math.random() / 2),
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
  return { library, client, make }
}

/**
 * A connection that is half open takes whatever is written to it, and what is written keeps the library's own clock for quiet
 * sockets from ringing. So the server is asked whether it is there. Where it does not say, a second connection is opened, and
 * the one that answers first stays. Ends when the client that is held is destroyed.
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

/** Redis says what is wrong in the first word of an error, in capitals; the rest may name what it should not. */
export function explainRedis(cause: unknown, { what, source }: { what: string; source: FailureSource }): Failure {
  if (isMissingPackage(cause)) return new Failure('unsupported', `${what}: ${cause.message}`, { source, cause })
  const word = cause instanceof Error ? (/^[A-Z]{3,}\b/.exec(cause.message)?.[0] ?? cause.constructor.name) : 'an error'
  if (/^(NOAUTH|WRONGPASS|NOPERM)$/.test(word)) {
    const message = `${what}: Redis refused the connection (${word}); check the user and password in its url`
    return new Failure('refused', message, { source, cause })
  }
  return new Failure('broken', `${what}: Redis failed (${word}); check its server`, { source, cause })
}
