// The gateway as visitors see it: `root:`, the first page, and `contact:`, the address of its
// operator.
import { statSync } from 'node:fs'
import { extname } from 'node:path'
import { z } from 'zod'
import { contentPath } from '../values/content-path.ts'

const expected = 'expected page, none, /ipfs/<cid>[/<path>], /ipns/<name>, or an http(s) address'

function isRoot(text: string): boolean {
  if (text === 'page' || text === 'none') return true
  const isAddress = /^https?:\/\//.test(text) && URL.canParse(text) && !/[^\x21-\x7e]/.test(text)
  return isAddress || contentPath().safeParse(text).success
}

export const root = z
  .string({ error: expected })
  .refine(isRoot, expected)
  .default('page')
  .describe(
    'What GET / answers. page: a small page, or JSON for programs. none: 404. A content path or an http(s) address: a redirect to it.',
  )

export const publicAddress = z
  .url({ protocol: /^https?$/, error: 'expected an address such as https://gw.example' })
  .refine((url) => URL.parse(url)?.href === `${URL.parse(url)?.origin}/`, {
    error: 'expected a scheme and a host alone: other nodes look for content at its root',
  })
  .optional()
  .describe(
    'The public address of this gateway, such as https://gw.example. With it, /routing/v1 names it as a provider of what is pinned here. Absent: /routing/v1 names nobody.',
  )

export const contact = z
  .union([z.email(), z.url({ protocol: /^(https?|mailto)$/ })], {
    error: 'expected an e-mail address, or an address of a page such as https://gw.example/abuse',
  })
  .optional()
  .describe('E-mail address or page of the operator, shown on its pages.')

/** Types of a logo, by the ending of its file. */
export const logoTypes: Readonly<Record<string, string>> = {
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.jpg': 'image/jpeg',
  '.webp': 'image/webp',
}
const maxLogoBytes = 256 * 1024

const isLogo = (file: string): boolean =>
  extname(file).toLowerCase() in logoTypes &&
  (statSync(file, { throwIfNoEntry: false })?.size ?? maxLogoBytes + 1) <= maxLogoBytes

export const name = z
  .string()
  .trim()
  .min(1)
  .max(80)
  .default('IPFS gateway')
  .describe('The name of this gateway on its first page.')

export const logo = z
  .string()
  .refine(isLogo, `expected an existing ${Object.keys(logoTypes).join(', ')} file of at most 256 KiB`)
  .optional()
  .describe(
    'A picture of the operator, for the first page and as the icon of the site. Relative to where the gateway is started.',
  )
