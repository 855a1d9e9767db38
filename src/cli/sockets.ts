// Checks of unix sockets among the addresses, for `check` and `doctor`.
import { accessSync, constants, lstatSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import type { Config } from '../config/load.ts'
import { isUnix, type UnixAddress } from '../config/values.ts'
import { codeOf } from '../core/disk/files.ts'

export type SocketAddress = UnixAddress & { readonly key: 'listen' | 'admin' }

export const socketsOf = (config: Config): SocketAddress[] =>
  (['listen', 'admin'] as const).flatMap((key) => {
    const address = config[key]
    return address && isUnix(address) ? [{ key, ...address }] : []
  })

/** Undefined if a gateway of this user could listen there, or does. */
export function whyNoSocket({ path }: UnixAddress): string | undefined {
  const folder = dirname(path)
  try {
    if (!statSync(folder).isDirectory()) return `${folder} is no folder`
    accessSync(folder, constants.W_OK | constants.X_OK)
    const found = lstatSync(path, { throwIfNoEntry: false })
    return found && !found.isSocket() ? 'there is a file, and it is no socket; move it' : undefined
  } catch (error) {
    return `${folder} cannot be written to (${codeOf(error)}); make it, or look at its owner and its rights`
  }
}

export const unusableSockets = (config: Config): string[] =>
  socketsOf(config).flatMap((address) => {
    const why = whyNoSocket(address)
    return why === undefined ? [] : [`${address.key}: the gateway could not listen there: ${why}`]
  })

/** Notes on a valid configuration that trusts no proxy on its unix socket. */
export function notesOnTrust({ listen, trustedProxies, limits }: Config): string[] {
  if (!isUnix(listen) || trustedProxies.includes('unix')) return []
  const counted = limits.perClient === 'none' ? '' : ', also for limits.perClient'
  return [
    `listen: what comes over this socket has no address, so all clients behind it are one${counted}; where a proxy in front sets X-Forwarded-For, add unix to trustedProxies`,
  ]
}
