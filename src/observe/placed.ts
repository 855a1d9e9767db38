// Where the blocks of a DAG lie, as an operator is told it. Nothing is imported here, so that the scripts of the dashboard can be checked
// against it.

/** `unknown`: the tier could not be asked now. */
export type Place = 'has' | 'lacks' | 'unknown'

export type PlacedBlock = {
  readonly cid: string
  /** Where in the list the block is that leads to it; the root has none. A block that several lead to is there once. */
  readonly parent?: number
  /** Undefined for a leaf, which is not read, and for what no tier has. */
  readonly bytes?: number
  /** In the order of the tiers. */
  readonly places: readonly Place[]
  /** No tier has it, so that what lies below it is not known. */
  readonly isAway: boolean
}

export type Placed = {
  /** By name, in the order in which they are asked. */
  readonly tiers: readonly string[]
  /** From the root on, level by level. */
  readonly blocks: readonly PlacedBlock[]
  /** There are more, or the time was over. */
  readonly isCut: boolean
}
