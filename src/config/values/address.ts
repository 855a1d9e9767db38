// Listen addresses: 127.0.0.1:8080, [::1]:8080, :8080 for every address of the machine, or
// unix:/run/cidgate/public.sock for a unix socket.
import { z } from 'zod'

export type TcpAddress = { readonly host: string; readonly port: number }
/** `mode`: the permissions of the file. Default: those of the kind of listener. */
export type UnixAddress = { readonly path: string; readonly mode?: number | undefined }
export type Address = TcpAddress | UnixAddress

export const isUnix = (address: Address): address is UnixAddress => 'path' in address

/** The system's limit, including the terminating byte: 108 on Linux, 104 on macOS. */
const longestPath = process.platform === 'darwin' ? 103 : 107

const expected =
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
  text.startsWith('unix:') ? parseUnix(text) : (parseTcp(text) ?? expected)

export const address = () =>
  z.string({ error: expected }).transform((text, context) => {
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
