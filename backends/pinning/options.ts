// What every provider that speaks HTTP lets the operator set.
import { z } from 'zod'
import { duration } from '../../src/config/units.ts'

export const url = () => z.url({ protocol: /^https?$/, error: 'expected an http(s) address' })

export const clocks = {
  connect: duration().prefault('3s').describe('Until a connection is there.'),
  idle: duration().prefault('30s').describe('The longest silence of the service.'),
}

export const auth = () =>
  z
    .union([
      z.literal('none'),
      z.strictObject({ basic: z.string().min(3).describe('user:password') }),
      z.strictObject({ bearer: z.string().min(1).describe('A token.') }),
    ])
    .default('none')
    .describe('How we show who we are.')
