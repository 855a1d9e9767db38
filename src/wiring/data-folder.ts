// Locks the folder of the embedded stores before anything in it is touched.
import { ConfigError } from '../config/complaints.ts'
import { isFailure } from '../core/failure.ts'
import { type DataFolder, openDataFolder } from '../data-folder/folder.ts'
import { joinStore } from '../store/open.ts'
import type { Store } from '../store/store.ts'
import type { Whole } from './wiring-context.ts'

export type OwnFolder = { readonly folder: DataFolder; readonly store: Store }

/**
 * Holds the lock until the last gateway over it has ended. Throws a ConfigError if the lock is
 * unavailable.
 */
export async function ownDataFolder({ config, clock, log, lease, folders, own }: Whole): Promise<OwnFolder> {
  const { data, pinning, upload } = config
  const isNeeded = pinning.providers.length + own.providers.length > 0 && !upload.forwardTo
  const { folder, opened } = lease.take(
    'data folder',
    [data, isNeeded],
    () => {
      const folder = folders.enter(data)
      return { folder, opened: openDataFolder(folder, { clock, log, isNeeded }) }
    },
    async ({ folder, opened }) => {
      const leave = await opened.catch(() => undefined)
      leave?.()
      folder.leave()
    },
  )
  await opened.catch((error: unknown) => {
    throw isFailure(error, 'refused') ? new ConfigError([`data: ${error.message}`]) : error
  })
  const joined = lease.take(
    'store',
    [data],
    () => joinStore(folder, { clock, log }),
    ({ leave }) => leave(),
  )
  return { folder, store: joined.store }
}
