// The data folder has one owner at a time. Gateways of one process share it, as during a reload; a
// second process is refused before it touches anything in it.
import { userInfo } from 'node:os'
import { codeOf, isNoRoom, tryToWrite } from '../core/disk/files.ts'
import { Failure } from '../core/failure.ts'
import { lockTroubleOf } from '../store/lock.ts'
import { createOwnership, type Leave, type OwnerOptions, type OwnerRecord, recordIn } from '../store/owner.ts'
import type { DataFolder } from './folders.ts'

export type DataFolderOptions = Omit<OwnerOptions, 'isFull'> & {
  /**
   * True if the gateway stores data that must not be lost. Otherwise an unwritable folder does not
   * stop the start.
   */
  readonly isNeeded: boolean
}

/**
 * Rejects with a Failure `refused` that names the folder, and its owner or the user who cannot
 * write to it.
 */
export async function openDataFolder(folder: DataFolder, options: DataFolderOptions): Promise<Leave> {
  const { path } = folder
  const error = await tryToWrite(path).catch((cause: Error) => cause)
  if (!error || isNoRoom(error)) return own(folder, { ...options, isFull: error !== undefined })
  if (options.isNeeded) throw unwritable(path, error)
  options.log('warn', 'data.write-failed', { folder: path, why: codeOf(error) })
  return () => {}
}

async function own(folder: DataFolder, options: OwnerOptions): Promise<Leave> {
  try {
    return await folder.part(createOwnership).join(options)
  } catch (error) {
    const { path } = folder
    throw lockTroubleOf(error) === 'taken' ? taken(path, await recordIn(path, options.clock)) : error
  }
}

function taken(path: string, record: OwnerRecord | undefined): Failure {
  const who = record ? `process ${record.pid} on ${record.host} since ${record.since}` : 'another process'
  return new Failure(
    'refused',
    `${path} is in use by another cidgate: ${who} (expected one process to a folder: stop that one, or set another folder)`,
    { source: 'ours' },
  )
}

function unwritable(path: string, cause: Error): Failure {
  const code = codeOf(cause) ?? cause.message
  const said = ['EEXIST', 'ENOTDIR'].includes(code)
    ? `${path} is not a folder: a file is in its place, or in the place of one above it (expected a folder, or a path where one can be made)`
    : `${path} cannot be written to by ${user()}: ${code} (expected a folder of that user, or another folder)`
  return new Failure('refused', said, { source: 'ours', cause })
}

/** In a container the user may be a number without a name. */
function user(): string {
  const uid = process.getuid?.()
  try {
    const { username } = userInfo()
    return uid === undefined ? `user ${username}` : `user ${username} (${uid})`
  } catch {
    return `user ${uid}`
  }
}
