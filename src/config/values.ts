// Values that several sections of the configuration share: content paths, IP ranges, service URLs,
// tokens and listen addresses.
import { isIP } from 'node:net'
import { z } from 'zod'
import { parseCid, parseKey } from '../core/cid.ts'
import { headerToken, isUnfilled, size } from '../core/units.ts'

const expectedPath = 'expected /ipfs/<cid>[/<path>] or /ipns/<name>'

export const domain = /^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?$/

/** Validated as by the gateway, so that a mistake is found at startup. */
function isContentPath(text: string): boolean {
  const [namespace, root = '', ...rest] = text.split('/').filter((part) => part !== '')
  if (rest.some((part) => part === '.' || part === '..')) return false
  if (namespace === 'ipfs') return parseCid(root) !== undefined
  return parseKey(root) !== undefined || domain.test(root)
}

export const contentPath = () =>
  z
    .string()
    .regex(/^\/ip[fn]s\/[^/]/, { error: expectedPath, abort: true })
    .refine(isContentPath, { error: expectedPath })

function isRange(text: string): boolean {
  if (text === 'unix') return true
  const [address = '', bits, more] = text.split('/')
  const family = isIP(address)
  if (family === 0 || more !== undefined) return false
  return bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= (family === 4 ? 32 : 128))
}

export const ranges = () =>
  z.array(
    z.string().refine(isRange, 'expected an address or a range such as 127.0.0.1, 10.0.0.0/8 or fd00::/8, or unix'),
  )

const minCharacters = 16

/** A short token could be guessed. */
export const token = () =>
  headerToken().refine(
    (text) => isUnfilled(text) || text.length >= minCharacters,
    `expected a token of at least ${minCharacters} characters`,
  )

const expectedTime = 'expected a date such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z'

/**
 * The expiry of a token, as milliseconds since the epoch. A bare date means the beginning of that
 * day (UTC).
 */
const moment = z.string({ error: expectedTime }).transform((text, context) => {
  const isForm = /^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2}))?$/.test(text)
  const at = isForm ? Date.parse(text) : Number.NaN
  if (!Number.isNaN(at)) return at
  context.addIssue({ code: 'custom', message: expectedTime })
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
          .describe('Name of its owner, shown in the access log.'),
        token: token().optional().describe('The token, or'),
        sha256: z
          .string()
          .regex(/^[0-9a-f]{64}$/, 'expected the SHA-256 of the token, 64 hexadecimal digits in lower case')
          .optional()
          .describe('its SHA-256, so that the file holds no secret: `printf %s "$TOKEN" | sha256sum`.'),
        mayDelete: z
          .boolean()
          .optional()
          .describe("Allows its client to delete the pins of every client by Kubo's RPC (`pin/rm`)."),
        quota: quota
          .optional()
          .describe('Daily upload limit (UTC) of a named token; beyond it 429 until the next day.'),
        expires: moment.optional().describe('Expiry: 2027-01-31, or 2027-01-31T12:00:00Z.'),
      })
      .refine(({ token, sha256 }) => (token === undefined) !== (sha256 === undefined), {
        error: 'expected one of `token` and `sha256`',
      })
      .refine(({ name, quota }) => name !== undefined || quota === undefined, {
        path: ['quota'],
        error: 'expected a `name` under which it is counted',
      }),
  ])

type TcpAddress = { readonly host: string; readonly port: number }
/** `mode`: the permissions of the file. Default: those of the kind of listener. */
export type UnixAddress = { readonly path: string; readonly mode?: number | undefined }
export type Address = TcpAddress | UnixAddress

export const isUnix = (address: Address): address is UnixAddress => 'path' in address

/** The system's limit, including the terminating byte: 108 on Linux, 104 on macOS. */
const longestPath = process.platform === 'darwin' ? 103 : 107

const expectedAddress =
  'expected host:port such as 127.0.0.1:8080, [::1]:8080, or :8080 for every address; or unix:/path/to.sock'
const expectedUnix = 'expected unix: and an absolute path, and perhaps its mode: unix:/run/cidgate.sock,mode=0660'

function parseTcp(text: string): TcpAddress | undefined {
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]\s]*)):(\d{1,5})$/.exec(text)
  const port = Number(match?.[3])
  return match && port <= 65_535 ? { host: match[1] ?? (match[2] || '::'), port } : undefined
}

/** Returns an error as a string. */
function parseUnix(text: string): UnixAddress | string {
  const [, path, mode] = /^unix:(\/[^\0]*?[^/\0])(?:,mode=0?([0-7]{3}))?$/s.exec(text) ?? []
  if (path === undefined || /,mode=[^/]*$/.test(path)) return expectedUnix
  const bytes = Buffer.byteLength(path)
  if (bytes > longestPath)
    return `the path of a unix socket is ${bytes} bytes long (expected at most ${longestPath}, the system's limit)`
  return { path, ...(mode !== undefined && { mode: Number.parseInt(mode, 8) }) }
}

const parse = (text: string): Address | string =>
  text.startsWith('unix:') ? parseUnix(text) : (parseTcp(text) ?? expectedAddress)

export const address = () =>
  z.string({ error: expectedAddress }).transform((text, context) => {
    const parsed = parse(text)
    if (typeof parsed !== 'string') return parsed
    context.addIssue({ code: 'custom', message: parsed })
    return z.NEVER
  })

export function addressText(address: Address): string {
  if (isUnix(address)) {
    const { path, mode } = address
    return `unix:${path}${mode === undefined ? '' : `,mode=0${mode.toString(8).padStart(3, '0')}`}`
  }
  const { host, port } = address
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`
}

/** For messages: a URL, or the socket. */
export const addressShown = (text: string): string => (text.startsWith('unix:') ? text : `http://${text}`)

/**
 * True if reachable from this machine only. False for a unix socket: it usually has a proxy, whose
 * clients come from anywhere.
 */
export const listensOnLoopback = (address: Address): boolean =>
  !isUnix(address) && /^(?:127\.|::1$|localhost$)/i.test(address.host)

export function isSameAddress(one: Address | false, other: Address | false): boolean {
  if (one === false || other === false) return false
  if (isUnix(one) || isUnix(other)) return isUnix(one) && isUnix(other) && one.path === other.path
  return one.host === other.host && one.port === other.port
}

const isEvery = ({ host }: TcpAddress): boolean => host === '::' || host === '0.0.0.0'

/** Port 0 is any free port, so it never collides. */
function collide(one: Address, other: Address): boolean {
  if (isUnix(one) || isUnix(other)) return isSameAddress(one, other)
  if (one.port === 0 || one.port !== other.port) return false
  return one.host === other.host || isEvery(one) || isEvery(other)
}

/** Refuses the same address for two listeners. */
export function refuseOneAddressTwice(
  { listen, admin }: { readonly listen: Address; readonly admin: Address | false },
  context: z.core.$RefinementCtx,
): void {
  if (admin === false || !collide(admin, listen)) return
  const other = isUnix(admin) ? 'another path' : 'another port'
  context.addIssue({
    code: 'custom',
    path: ['admin'],
    message: `is the same address as \`listen\` (expected ${other}, or false)`,
  })
}
