// The data folder has one owner at a time. Gateways of one process share it, as they do while a reload replaces one by the
// other; a second process is refused before it has touched anything in it.
import { realpath } from 'node:fs/promises'
import { userInfo } from 'node:os'
import { codeOf, isNoRoom, tryToWrite } from '../core/durable.ts'
import { Failure } from '../core/failure.ts'
import { troubleOf } from './lock.ts'
import { type Owner, type OwnerOptions, type OwnerRecord, own, recordIn } from './owner.ts'

export type DataFolderOptions = Omit<OwnerOptions, 'isFull'> & {
  /** What is written into it must not be lost. If not, one that cannot be written to is no reason not to start. */
  readonly isNeeded: boolean
}

/** The last of this process that does gives the folder back. */
export type Leave = () => void

/** Of this process, by their real paths. */
const owned = new Map<string, { users: number; readonly owning: Promise<Owner>; owner?: Owner }>()

/** Rejects with a Failure `refused` that names the folder, and who has it or who cannot write to it. */
export async function openDataFolder(path: string, options: DataFolderOptions): Promise<Leave> {
  const error = await tryToWrite(path).catch((cause: Error) => cause)
  if (!error || isNoRoom(error)) return share(path, { ...options, isFull: error !== undefined })
  if (options.isNeeded) throw unwritable(path, error)
  options.log('warn', 'data.unwritable', { folder: path, why: codeOf(error) })
  return () => {}
}

async function share(path: string, options: OwnerOptions): Promise<Leave> {
  const key = await realpath(path).catch((error: Error) => {
    throw unwritable(path, error)
  })
  const shared = owned.get(key) ?? { users: 0, owning: own(path, options) }
  owned.set(key, shared)
  shared.users++
  let isGone = false
  const leave = () => {
    if (isGone) return
    isGone = true
    shared.users--
    if (shared.users > 0) return
    owned.delete(key)
    shared.owner?.release()
  }
  try {
    shared.owner = await shared.owning
    return leave
  } catch (error) {
    leave()
    throw troubleOf(error) === 'taken' ? taken(path, await recordIn(path, options.clock)) : error
  }
}

function taken(path: string, record: OwnerRecord | undefined): Failure {
  const who = record ? `process ${record.pid} on ${record.host} since ${record.since}` : 'another process'
  return new Failure(
    'refused',
    `${path} is the folder of a cidgate that is running: ${who} (expected one process to a folder: stop that one, or set another folder)`,
    { source: 'ours' },
  )
}

const unwritable = (path: string, cause: Error): Failure =>
  new Failure(
    'refused',
    `${path} cannot be written to by ${user()}: ${codeOf(cause) ?? cause.message} (expected a folder of that user, or another folder)`,
    { source: 'ours', cause },
  )

/** In a container it may be a number without a name. */
function user(): string {
  const uid = process.getuid?.()
  try {
    const { username } = userInfo()
    return uid === undefined ? `user ${username}` : `user ${username} (${uid})`
  } catch {
    return `user ${uid}`
  }
}
