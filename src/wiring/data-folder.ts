// The folder of the embedded stores, ours before anything in it is touched.
import { ConfigError } from '../config/complaints.ts'
import { isFailure } from '../core/failure.ts'
import { openDataFolder } from '../data-folder/folder.ts'
import type { Whole } from './whole.ts'

/** Until the last gateway over it has ended. Throws a ConfigError where it cannot be had. */
export async function ownDataFolder({ config, clock, log, lease }: Whole): Promise<void> {
  const { data, pinning, upload } = config
  const isNeeded = pinning.providers.length > 0 && !upload.through
  const { opened } = lease.take(
    'data folder',
    [data, isNeeded],
    () => ({ opened: openDataFolder(data, { clock, log, isNeeded }) }),
    (folder) =>
      folder.opened.then(
        (leave) => leave(),
        () => {},
      ),
  )
  await opened.catch((error: unknown) => {
    throw isFailure(error, 'refused') ? new ConfigError([`data: ${error.message}`]) : error
  })
}
