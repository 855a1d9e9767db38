// Shares a folder between backends: of this process, where after a reload the old and the new one use it concurrently, and of
// sibling processes of the same gateway.

export interface SharedFolders {
  /**
   * `part` returns the same object to all backends of this folder, created by `make` on first use.
   */
  enter(path: string): { part<Part extends object>(make: (path: string) => Part): Part; leave(): void }
}

export interface FolderCompany {
  /** True in the one process that does periodic work on the folder. */
  readonly isOwner: boolean
}
