// `host:port` as people write it: 127.0.0.1:8080, [::1]:8080, or :8080 for every address of the machine.
import { z } from 'zod'

export type Address = { readonly host: string; readonly port: number }

const expected = 'expected host:port such as 127.0.0.1:8080, [::1]:8080, or :8080 for every address'

function parse(text: string): Address | undefined {
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]\s]*)):(\d{1,5})$/.exec(text)
  const port = Number(match?.[3])
  return match && port <= 65_535 ? { host: match[1] ?? (match[2] || '::'), port } : undefined
}

export const address = () =>
  z.string({ error: expected }).transform((text, context) => {
    const parsed = parse(text)
    if (parsed) return parsed
    context.addIssue({ code: 'custom', message: expected })
    return z.NEVER
  })

export const addressText = ({ host, port }: Address): string =>
  host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`

/** Reached from this machine alone. */
export const listensOnLoopback = ({ host }: Address): boolean => /^(?:127\.|::1$|localhost$)/i.test(host)

const isEvery = ({ host }: Address): boolean => host === '::' || host === '0.0.0.0'

/** Two servers cannot listen on one address. Port 0 is any free port. */
export function refuseOneAddressTwice(
  { listen, admin }: { readonly listen: Address; readonly admin: Address | false },
  context: z.core.$RefinementCtx,
): void {
  if (admin === false || admin.port === 0 || admin.port !== listen.port) return
  if (admin.host !== listen.host && !isEvery(admin) && !isEvery(listen)) return
  context.addIssue({
    code: 'custom',
    path: ['admin'],
    message: 'is the same address as `listen` (expected another port, or false)',
  })
}
