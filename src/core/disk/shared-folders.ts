// How a backend gets what all backends over one folder share: after a reload two of them work there for a while.

export interface SharedFolders {
  /** `part` gives all of them in this folder the same thing that `make` made. */
  enter(path: string): { part<Part extends object>(make: (path: string) => Part): Part; leave(): void }
}
