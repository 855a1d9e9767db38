// What every provider that speaks HTTP lets the operator set.
import { z } from 'zod'
import { duration } from '../../src/config/units.ts'

export const url = () =>
  z
    .url({ protocol: /^https?$/, error: 'expected an http(s) address' })
    .refine(isPublic, 'expected an address without user and password: there are options of their own for them')

function isPublic(text: string): boolean {
  if (!URL.canParse(text)) return true
  const { username, password } = new URL(text)
  return username === '' && password === ''
}

/** What stands in a header behind `Bearer`. */
export const token = () =>
  z
    .string()
    .min(1)
    .refine((text) => /^[\x21-\x7e]*$/.test(text), 'expected a token without spaces or other than ASCII characters')

export const clocks = {
  connect: duration().prefault('3s').describe('Until a connection is there.'),
  idle: duration().prefault('30s').describe('The longest silence of the service.'),
}

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
      z.strictObject({ bearer: token().describe('A token.') }),
    ])
    .default('none')
    .describe('How we show who we are.')
