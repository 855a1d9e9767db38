// The location of the blocks of a DAG, for operators. No imports, so that the scripts of the
// dashboard can be checked against it.

/** `unknown`: the tier is unavailable. */
export type Place = 'has' | 'lacks' | 'unknown'

export type PlacedBlock = {
  readonly cid: string
  /**
   * The index of the block that links to it; undefined for the root. A block with several parents
   * is listed once.
   */
  readonly parent?: number
  /** Undefined for a leaf, which is not read, and for a block in no tier. */
  readonly bytes?: number
  /** In the order of the tiers. */
  readonly places: readonly Place[]
  /** True if no tier has it, so that its links are unknown. */
  readonly isAway: boolean
}

export type Placed = {
  /** Names, in lookup order. */
  readonly tiers: readonly string[]
  /** From the root, level by level. */
  readonly blocks: readonly PlacedBlock[]
  /** True if there are more blocks, or the time ran out. */
  readonly isCut: boolean
}
