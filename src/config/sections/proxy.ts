// The `proxy:` section: paths forwarded to other services.
import { z } from 'zod'
import { duration, size } from '../../core/units.ts'
import { serviceUrl } from '../values/service-url.ts'

const ours: readonly string[] = ['/ipfs', '/ipns', '/add', '/openapi.json', '/api/v0', '/routing/v1', '/ipni/v1']
const methods = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'] as const
const isWithin = (path: string, outer: string): boolean => path === outer || path.startsWith(`${outer}/`)

const entry = z.strictObject({
  path: z
    .string()
    .regex(/^(\/[A-Za-z0-9._~-]+)+$/, 'expected a path such as /status, without a slash at its end')
    .refine((path) => !/\/\.{1,2}(\/|$)/.test(path), 'expected a path without . and .. segments')
    .refine((path) => !ours.some((own) => isWithin(path, own) || isWithin(own, path)), {
      error: `expected none of the gateway's own paths (${ours.join(', ')})`,
    })
    .describe('This path and all below it are passed on.'),
  to: serviceUrl()
    .refine((url) => !/[?#]/.test(url), 'expected an address without ? and #')
    .describe('Where to: what follows `path` is put behind it. Its redirects are never followed here.'),
  methods: z.array(z.enum(methods)).min(1).default(['GET', 'HEAD']).describe('What is passed on; the rest is 405.'),
  sendAuthorization: z.boolean().default(false).describe('Whether Authorization and cookies pass in both directions.'),
  maxBytes: size().prefault('1MiB').describe('The largest body that is passed on.'),
  timeout: duration().prefault('30s').describe('Longest time without a byte from the service.'),
})

export const proxy = z
  .array(entry)
  .superRefine((entries, context) => {
    for (const [index, { path }] of entries.entries())
      if (entries.findIndex((one) => one.path === path) < index)
        context.addIssue({
          code: 'custom',
          path: [index, 'path'],
          message: `expected each path once; ${path} is there twice`,
        })
  })
  .default([])
