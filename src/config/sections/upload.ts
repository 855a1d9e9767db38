// The `upload:` section.
import { z } from 'zod'
import { profiles } from '../../../backends/pinning/contract.ts'
import { duration, isUnfilled, size, unfilled } from '../../core/units.ts'
import { serviceUrl } from '../values/service-url.ts'
import { namedToken } from '../values/token.ts'

const authorization = () =>
  z
    .string()
    .min(1)
    .refine((text) => !text.split(' ').some(isUnfilled), unfilled)

export const upload = z
  .strictObject({
    maxBytes: size().prefault('100MiB').describe('The largest upload; more is answered with 413.'),
    profile: z
      .enum(profiles)
      .default('unixfs-v1-2025')
      .describe('How a file becomes blocks, and so its CID (IPIP-499). Change it, and the same file gets another CID.'),
    auth: z
      .union([z.enum(['none', 'open']), z.strictObject({ tokens: z.array(namedToken()).min(1) })])
      .default('none')
      .describe(
        'Which clients may upload: those that send one of these as `Authorization: Bearer …`. none: all clients of this machine; refused where `listen` is another address than loopback, or a unix socket. open: all clients.',
      ),
    concurrency: z
      .int()
      .min(1)
      .default(64)
      .describe('Uploads received at once; the next waits up to 5 s, then gets 503.'),
    perClient: z
      .union([z.literal('auto'), z.int().min(1)])
      .default('auto')
      .describe(
        'Of these, at most so many from one address (IPv6: one /64). auto: three times the free ones, so that one client never has all. Behind proxies see `trustedProxies`.',
      ),
    idleTimeout: duration()
      .refine((ms) => ms > 0, 'expected more than 0')
      .prefault('30s')
      .describe('An upload that sends nothing for this long gets 408.'),
    maxPendingBytes: size()
      .optional()
      .describe(
        'Bytes of uploads in progress; beyond them uploads get 503. By default 1GiB, or twice `maxBytes` if that is more.',
      ),
    schemas: z
      .record(z.string().regex(/^[a-z0-9-]+$/), z.record(z.string(), z.unknown()))
      .default({})
      .describe(
        'JSON Schemas (2020-12) of your own for POST /add?schema=<name>, beside evidence, policy and dispute-template.',
      ),
    forwardTo: z
      .union([
        serviceUrl().transform((url): { url: string; authorization?: string | undefined } => ({ url })),
        z.strictObject({ url: serviceUrl(), authorization: authorization().optional() }),
      ])
      .optional()
      .describe(
        'Thin mode: uploads go on to this /add, or to the /api/v0 of a Kubo, as they arrive; nothing is kept here.',
      ),
    kuboRpc: z
      .boolean()
      .default(false)
      .describe(
        "A part of Kubo's RPC API under /api/v0: add, block/get, block/put, cat, dag/export, dag/import, get, ls, pin/add, pin/ls, pin/rm.",
      ),
    minRate: size()
      .prefault('1KiB')
      .describe(
        'Bytes a second, on average, below which an upload is ended as stuck. Eight times that for each upload that waits for a slot, over the last seconds; the slowest go first.',
      ),
  })
  .transform(({ maxPendingBytes, ...rest }) => ({
    ...rest,
    maxPendingBytes: maxPendingBytes ?? Math.max(2 ** 30, 2 * rest.maxBytes),
  }))
  .refine(({ maxBytes, maxPendingBytes }) => maxBytes <= maxPendingBytes, {
    path: ['maxPendingBytes'],
    error: 'expected at least `maxBytes`, or the largest uploads would never be taken',
  })
