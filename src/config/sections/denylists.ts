// The `denylists:` section: lists of denied content, in files or at URLs.
import { z } from 'zod'

const expected = 'expected a file, an address, or { url, required, copy }'

const atAddress = z.strictObject({
  url: z.url({ protocol: /^https?$/ }).describe('The address of the list.'),
  required: z
    .boolean()
    .default(true)
    .describe(
      'false: while the list cannot be had and no copy of it is there, the gateway starts without it and goes on asking.',
    ),
  copy: z
    .string()
    .min(1)
    .optional()
    .describe('A file with an earlier text of the list, for the first start at which the address gives none.'),
})

export const denylists = z
  .array(z.union([z.string().min(1), atAddress], { error: expected }))
  .default([])
  .describe('Files or URLs of compact denylists (IPIP-383).')
