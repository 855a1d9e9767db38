// A store is shared by the gateways of this process over one folder, and closed with the last of them.
import type { SharedFolders } from '../core/disk/shared-folders.ts'
import { createStore, createStoreReader } from './create.ts'
import { createOwnership, type OwnerOptions } from './owner.ts'
import { placesIn } from './places.ts'
import type { Store, StoreReader } from './store.ts'

export type JoinOptions = Pick<OwnerOptions, 'clock' | 'log'>

export interface Joined<Kind extends StoreReader = Store> {
  readonly store: Kind
  leave(): Promise<void>
}

/** Where it is, there is a store. */
export const databaseIn = (folder: string): string => placesIn(folder).file

type Folder = ReturnType<SharedFolders['enter']>

/** The folder is this process's own from here on; where another one has it, `store.ready` rejects and nothing is touched. */
export const joinStore = (folder: Folder, options: JoinOptions): Joined =>
  folder.part(createSharedStore).join(folder, options)

/** For a process beside the one that owns the folder. */
export const joinReader = (folder: Folder, options: JoinOptions): Joined<StoreReader> =>
  folder.part(createSharedReader).join(options)

function createSharedStore(path: string) {
  let users = 0
  let store: Store | undefined
  let owned: Promise<() => void> | undefined
  let closing: Promise<void> = Promise.resolve()

  async function close(last: Store, ownership: Promise<() => void> | undefined): Promise<void> {
    await last.close()
    const leave = await ownership?.catch(() => undefined)
    leave?.()
  }

  return {
    join(folder: Folder, { clock, log }: JoinOptions): Joined {
      users++
      const before = closing
      owned ??= before.then(() => folder.part(createOwnership).join({ clock, log, isFull: false }))
      owned.catch(() => {})
      store ??= createStore(path, { clock, log, owned })
      return {
        store,
        leave: once(async () => {
          users--
          if (users > 0 || !store) return
          closing = close(store, owned)
          store = undefined
          owned = undefined
          await closing
        }),
      }
    },
  }
}

function createSharedReader(path: string) {
  let users = 0
  let store: StoreReader | undefined

  return {
    join({ clock, log }: JoinOptions): Joined<StoreReader> {
      users++
      store ??= createStoreReader(path, { clock, log })
      return {
        store,
        leave: once(async () => {
          users--
          if (users > 0) return
          const last = store
          store = undefined
          await last?.close()
        }),
      }
    },
  }
}

function once(work: () => Promise<void>): () => Promise<void> {
  let done: Promise<void> | undefined
  return () => (done ??= work())
}
