// How a backend learns that other processes of the same gateway use its folder: what it remembers of the folder is then not all
// there is, and one of them alone evicts.

export interface FolderCompany {
  /** This process evicts. */
  readonly isOwner: boolean
  /** This process put so many bytes there, and does not evict. */
  wrote(folder: string, shard: string, bytes: number): void
  /** Another one did. The answer ends it. */
  onWrote(folder: string, heard: (shard: string, bytes: number) => void): () => void
}
