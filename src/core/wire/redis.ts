// A connection to Redis or Valkey that is always open: it keeps trying while the server is away, and a command made meanwhile fails
// at once. For every kind of backend that speaks to one.
import { Failure, type FailureSource } from '../failure.ts'
import { isMissingPackage, packageOf } from '../packages.ts'

export const redisUrl = {
  form: /^(redis|rediss|unix):\/\/./,
  expected: 'expected redis://… or rediss://…',
  about: 'redis://[user:password@]host:port[/database]',
} as const

const connectMs = 1000
// A server that has gone silent: the client asks every two seconds, and a socket quiet for five is made anew.
const pingMs = 2000
const silentMs = 5000
const mostBackOffMs = 5000
// RESP's bulk string, `$`: replies of this type come as bytes and not as text.
const bulkString = 36

type Library = typeof import('@keyv/redis')
export type RedisClient = ReturnType<Library['createClient']>

/** While it is away every command fails with "offline"; why is in the last event. */
export type LastEvent = { error: unknown }

export type RedisConnection = { readonly library: Library; readonly client: RedisClient }

/** Resolves when the client is connected, or after `waitMs`. */
export async function connectRedis(
  url: string,
  how: { readonly userAgent: string; readonly last: LastEvent; readonly waitMs: number },
): Promise<RedisConnection> {
  const { userAgent, last, waitMs } = how
  const library = await packageOf('@keyv/redis', () => import('@keyv/redis'))
  // The library makes a class with all commands for each configuration that differs from the last one, 10 ms and more; a
  // duplicate shares the class of a client without any.
  const client = library.createClient().duplicate({
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
  return { library, client: client as unknown as RedisClient }
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
