// How a backend learns that other processes of the same gateway use its folder: what it remembers of the folder is then not all
// there is, and one of them alone evicts.

export interface FolderCompany {
  /** This process evicts. */
  readonly isOwner: boolean
  /** This process put so many bytes there, and does not evict. */
  wrote(folder: string, shard: string, bytes: number): void
  /** Hears of what others wrote. The answer ends it. */
  onWrote(folder: string, listener: WroteListener): () => void
}

export type WroteListener = {
  wrote(shard: string, bytes: number): void
  /** One of the others ended: what it wrote last was not told. */
  lost(): void
}
