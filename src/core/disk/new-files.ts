// New files of a folder, each whole or not at all: written beside, then renamed. Not synced.
import { rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { isGone, makeFolders, temporaryIn } from './files.ts'
import { renameOver } from './regular.ts'
import { createThreadWriter, type ThreadWriter, threadWriterBytes } from './thread-writer.ts'
import { writeNew } from './write-new.ts'

export interface NewFiles {
  /** Makes its folder as well, where there is none. */
  write(file: string, bytes: Uint8Array, signal: AbortSignal): Promise<void>
  close(): void
}

// With fewer small files at once a thread would do nothing most of the time.
const threadFrom = 8

export function createNewFiles(thread: ThreadWriter = createThreadWriter()): NewFiles {
  let small = 0
  let isByThread = false

  async function writeSmall(file: string, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    small++
    isByThread ||= small >= threadFrom
    try {
      if (isByThread && (await thread.write(temporaryIn(dirname(file)), file, bytes, signal))) return
      await writeByPool(file, bytes, signal)
    } finally {
      small--
    }
  }

  return {
    write: (file, bytes, signal) =>
      bytes.byteLength <= threadWriterBytes ? writeSmall(file, bytes, signal) : writeByPool(file, bytes, signal),
    close: thread.close,
  }
}

async function writeByPool(file: string, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
  const temporary = temporaryIn(dirname(file))
  try {
    await writeNew(temporary, bytes, signal).catch(async (error: unknown) => {
      if (!isGone(error)) throw error
      await makeFolders(dirname(file))
      await writeNew(temporary, bytes, signal)
    })
    await renameOver(temporary, file)
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => {})
    throw error
  }
}
