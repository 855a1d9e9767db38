// The folders of the gateways in one process. Two gateways may share one: during a reload, or if an
// application creates two over the same data. One object per folder holds the shared state.
import { realpathSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'

/** A folder as one gateway sees it, until it leaves. */
export interface DataFolder {
  readonly path: string
  /** Returns the same result of `make` to every gateway in this folder. */
  part<Part extends object>(make: (path: string) => Part): Part
  leave(): void
}

export interface DataFolders {
  /** Identified by its real path, even if the folder does not exist yet. */
  enter(path: string): DataFolder
}

type SharedFolder = { readonly parts: Map<unknown, object>; users: number }

export function createDataFolders(): DataFolders {
  const entered = new Map<string, SharedFolder>()

  return {
    enter(path) {
      const key = realPathOf(resolve(path))
      const shared = entered.get(key) ?? { parts: new Map<unknown, object>(), users: 0 }
      entered.set(key, shared)
      shared.users++
      let isGone = false
      return {
        path,
        part<Part extends object>(make: (path: string) => Part): Part {
          const part = (shared.parts.get(make) as Part | undefined) ?? make(path)
          shared.parts.set(make, part)
          return part
        },
        leave() {
          if (isGone) return
          isGone = true
          shared.users--
          if (shared.users === 0) entered.delete(key)
        },
      }
    },
  }
}

/**
 * A missing folder has the same real path before and after it is made, also below a symbolic link.
 */
function realPathOf(path: string): string {
  try {
    return realpathSync(path)
  } catch {
    const parent = dirname(path)
    return parent === path ? path : join(realPathOf(parent), basename(path))
  }
}

// The only state of a process outside its gateways: two gateways of one application may use the
// same folder without knowing each other. Everything else is passed to a gateway.

export const processFolders: DataFolders = createDataFolders()

// Free space on the disk of a folder.

const statfsTimeoutMs = 1000

/** Undefined if the disk does not report it, or not in time. */
export async function roomAt(
  folder: string,
  clock: Clock,
): Promise<{ readonly freeBytes: number; readonly bytes: number } | undefined> {
  const late = () => new Failure('timeout', `${folder} did not answer in time`, { source: 'ours' })
  try {
    const { bavail, blocks, bsize } = await withDeadline({ ms: statfsTimeoutMs, clock, late }, () => statfs(folder))
    return { freeBytes: bavail * bsize, bytes: blocks * bsize }
  } catch {
    return undefined
  }
}
