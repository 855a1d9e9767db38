// Durations and sizes as people write them (`250ms`, `5s`, `1h`; `64KiB`, `10GiB`, `5MB`;
// internally always milliseconds and bytes), and secrets that were not filled in. Imports nothing
// from `src`, so that backends may use it.
import { z } from 'zod'

const millisecondsPer: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }
const bytesPer: Readonly<Record<string, number>> = {
  B: 1,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  KiB: 1024,
  MiB: 1024 ** 2,
  GiB: 1024 ** 3,
  TiB: 1024 ** 4,
}

function parse(text: string, units: Record<string, number>): number | undefined {
  const match = /^(\d+(?:\.\d+)?) ?([A-Za-z]+)$/.exec(text.trim())
  const factor = match ? units[match[2] as string] : undefined
  return match && factor !== undefined ? Math.round(Number(match[1]) * factor) : undefined
}

type Scale = {
  readonly units: Record<string, number>
  readonly expected: string
  readonly max: number
  readonly limit: string
}

function measure({ units, expected, max, limit }: Scale) {
  const said = z
    .union([z.string(), z.literal(0)], { error: `expected ${expected}` })
    .meta({ title: expected.split(' such')[0] ?? '' })
  return said.transform((value, context) => {
    if (value === 0) return 0
    const parsed = parse(value, units)
    if (parsed !== undefined && parsed <= max) return parsed
    context.addIssue({ code: 'custom', message: `expected ${parsed === undefined ? expected : limit}` })
    return z.NEVER
  })
}

/** Milliseconds, capped at the longest timer: a longer one would fire at once. */
export const duration = () =>
  measure({
    units: millisecondsPer,
    expected: 'a duration such as 250ms, 5s or 1h',
    max: 24 * 86_400_000,
    limit: 'at most 24d',
  })
/** Milliseconds of a lifetime that needs no timer. */
export const lifetime = () =>
  measure({
    units: millisecondsPer,
    expected: 'a duration such as 1h or 90d',
    max: 36_500 * 86_400_000,
    limit: 'at most 36500d',
  })
export const size = () =>
  measure({
    units: bytesPer,
    expected: 'a size such as 64KiB, 100MiB or 10GiB',
    max: 8192 * 1024 ** 4,
    limit: 'at most 8192TiB',
  })

/**
 * A variable of the environment that was not filled in: the secret would be its name, which anyone
 * can guess.
 */
export const isUnfilled = (text: string): boolean => /^\$\(?\w+\)?$/.test(text)

export const unfilled = 'expected the secret itself, or $' + '{NAME} to take it from the environment'

/** A token that a header can carry. Separate rules, so that a union reports which one was broken. */
export const headerToken = () =>
  z
    .string()
    .min(1)
    .refine((text) => !isUnfilled(text), unfilled)
    .refine((text) => /^[\x21-\x7e]*$/.test(text), 'expected a token without spaces or other than ASCII characters')

/** The URL of a service. A user and a password in it would not be sent. */
export const serviceUrl = () =>
  z.url({ protocol: /^https?$/, error: 'expected an http(s) address' }).refine(hasNoUser, {
    error: 'expected an address without user and password',
  })

export function hasNoUser(text: string): boolean {
  const { username, password } = URL.parse(text) ?? { username: '', password: '' }
  return username === '' && password === ''
}
