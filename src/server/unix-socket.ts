// Listens on a unix socket. A killed process leaves its file behind, which would prevent listening:
// it is removed if no process answers on it. libuv removes the file when the listener is closed.
import { chmodSync, lstatSync, type Stats, unlinkSync } from 'node:fs'
import { connect, type Server } from 'node:net'
import type { UnixAddress } from '../config/values.ts'
import { codeOf } from '../core/disk/files.ts'

export type ListenerKind = 'listen' | 'admin'

/** Any process that can open the admin socket needs no token, so only its owner can by default. */
const modes: Readonly<Record<ListenerKind, number>> = { listen: 0o660, admin: 0o600 }

const modeOf = ({ mode }: UnixAddress, kind: ListenerKind): number => mode ?? modes[kind]

/**
 * A live process accepts at once; one with a full queue refuses with EAGAIN, which counts as alive.
 */
const probeTimeoutMs = 1000

/** Rejects with an explanation of what blocks the path. */
export async function removeStaleSocket({ path }: UnixAddress): Promise<void> {
  const before = statOf(path)
  if (!before) return
  if (!before.isSocket()) throw new Error('a file that is not a socket exists there: remove it or change the address')
  const result = await probe(path)
  if (result === 'ENOENT') return
  if (result !== 'ECONNREFUSED')
    throw new Error(
      result === 'EACCES'
        ? 'this user may not open the socket there: remove it or change the address'
        : 'another process answers there: stop it or change the address',
    )
  // Another process may have done the same meanwhile, and listen already.
  const now = statOf(path)
  if (now?.ino === before.ino && now.ctimeMs === before.ctimeMs) unlinkSync(path)
}

/**
 * Group and others never have more access than the mode allows, since Node binds before `listen`
 * returns. The owner's access is set by `chmod` instead, because the umask applies to every thread:
 * a folder created meanwhile must stay accessible.
 */
export function listenOnUnix(server: Server, address: UnixAddress, kind: ListenerKind, backlog: number): void {
  const before = process.umask(0o077 & ~modeOf(address, kind))
  try {
    server.listen({ path: address.path, backlog })
    if (server.listening) setMode(address, kind)
  } finally {
    process.umask(before)
  }
}

export const setMode = (address: UnixAddress, kind: ListenerKind): void =>
  chmodSync(address.path, modeOf(address, kind))

function statOf(path: string): Stats | undefined {
  return lstatSync(path, { throwIfNoEntry: false })
}

/** Returns `answers`, `silent`, or the code of the error. */
function probe(path: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(path)
    const end = (result: string) => {
      socket.destroy()
      resolve(result)
    }
    socket.setTimeout(probeTimeoutMs, () => end('silent'))
    socket.once('connect', () => end('answers'))
    socket.on('error', (error) => end(codeOf(error) ?? 'EIO'))
  })
}
