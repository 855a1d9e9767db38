// Shares state among all backends over one folder: after a reload the old and the new backend use
// it concurrently for a while.

export interface SharedFolders {
  /**
   * `part` returns the same object to all backends of this folder, created by `make` on first use.
   */
  enter(path: string): { part<Part extends object>(make: (path: string) => Part): Part; leave(): void }
}
