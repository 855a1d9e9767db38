// A token that clients send in a header: one with a space would never match, and a short one could
// be guessed.
import { z } from 'zod'
import { isUnfilled, size, unfilled } from '../../core/units.ts'

const minCharacters = 16

/** Separate rules, so that a union reports which one was broken. */
export const token = () =>
  z
    .string()
    .refine((text) => !isUnfilled(text), unfilled)
    .refine((text) => /^[\x21-\x7e]*$/.test(text), 'expected a token without spaces or other than ASCII characters')
    .refine(
      (text) => isUnfilled(text) || text.length >= minCharacters,
      `expected a token of at least ${minCharacters} characters`,
    )

const expected = 'expected a date such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z'

/**
 * The expiry of a token, as milliseconds since the epoch. A bare date means the beginning of that
 * day (UTC).
 */
const moment = z.string({ error: expected }).transform((text, context) => {
  const isForm = /^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2}))?$/.test(text)
  const at = isForm ? Date.parse(text) : Number.NaN
  if (!Number.isNaN(at)) return at
  context.addIssue({ code: 'custom', message: expected })
  return z.NEVER
})

const quota = z
  .strictObject({
    bytes: size()
      .refine((bytes) => bytes > 0, 'expected more than 0')
      .optional()
      .describe('Bytes of accepted uploads.'),
    uploads: z.int().min(1).optional().describe('Accepted uploads, of any number of files.'),
  })
  .refine(({ bytes, uploads }) => bytes !== undefined || uploads !== undefined, 'expected `bytes`, `uploads`, or both')

/** A token as a string, or an object with a name, a hash or an expiry. */
export const namedToken = () =>
  z.union([
    token(),
    z
      .strictObject({
        name: z
          .string()
          .regex(/^[\w.@-]{1,64}$/, 'expected up to 64 letters, digits and . _ - @')
          .optional()
          .describe('Who has it: told in the access log.'),
        token: token().optional().describe('The token itself; or'),
        sha256: z
          .string()
          .regex(/^[0-9a-f]{64}$/, 'expected the SHA-256 of the token, 64 hexadecimal digits in lower case')
          .optional()
          .describe('its SHA-256, so that the file holds no secret: `printf %s "$TOKEN" | sha256sum`.'),
        mayDelete: z
          .boolean()
          .optional()
          .describe("Whether its client may also delete pins, of every client, at Kubo's door (`pin/rm`)."),
        quota: quota
          .optional()
          .describe(
            'The most that it may upload in a day (UTC), as long as it has a name; more is 429 until the next day.',
          ),
        expires: moment.optional().describe('From then on it is refused: 2027-01-31, or 2027-01-31T12:00:00Z.'),
      })
      .refine(({ token, sha256 }) => (token === undefined) !== (sha256 === undefined), {
        error: 'expected one of `token` and `sha256`',
      })
      .refine(({ name, quota }) => name !== undefined || quota === undefined, {
        path: ['quota'],
        error: 'expected a `name` beside it, under which it is counted',
      }),
  ])
