// Tells a backend that sibling processes of the same gateway use its folder.

export interface FolderCompany {
  /** True in the one process that does periodic work on the folder. */
  readonly isOwner: boolean
}
