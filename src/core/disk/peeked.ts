// Bytes of a block that are readable without waiting: from memory, or from a file in the page
// cache.

/** A byte range of a block: from `from` up to, not including, `to`. */
export type ByteSpan = { readonly from: number; readonly to: number }

export type PeekOptions = {
  /** Absent means the complete block. */
  readonly part?: ByteSpan | undefined
  /**
   * The reader promises to call `release`, so the bytes may be in a reusable buffer. Otherwise the
   * reader owns the bytes.
   */
  readonly lends?: boolean | undefined
}

export type Peeked = {
  readonly bytes: Uint8Array
  /** The size of the complete block. */
  readonly size: number
  /**
   * Marks the bytes as no longer used by the reader or anything it passed them to. Calling it is
   * optional.
   */
  readonly release?: (() => void) | undefined
}

/** Cuts a part out of a block in memory. */
export const partOf = (bytes: Uint8Array, part: ByteSpan | undefined): Peeked => ({
  bytes: part ? bytes.subarray(part.from, part.to) : bytes,
  size: bytes.byteLength,
})
