// How a backend learns that other processes of the same gateway use its folder.

export interface FolderCompany {
  /** One of the processes does what needs to be done once. */
  readonly isOwner: boolean
}
