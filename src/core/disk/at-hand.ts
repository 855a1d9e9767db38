// Bytes of a block, or of a part of it, that are had at once: from memory, or from a file that is in the page cache.

/** A part of a block: the bytes `from` up to, not including, `to`. */
export type ByteSpan = { readonly from: number; readonly to: number }

export type AtHandOptions = {
  /** Absent: the whole block. */
  readonly part?: ByteSpan | undefined
  /** The reader may `release` the bytes, so that their memory is used again. Otherwise they are its own. */
  readonly lends?: boolean | undefined
}

/** Bytes that were had at once. */
export type AtHand = {
  readonly bytes: Uint8Array
  /** Of the whole block. */
  readonly size: number
  /** The reader and everything it passed the bytes on to are done with them. Not calling it is always right. */
  readonly release?: (() => void) | undefined
}

/** A block that is in memory, or a part of it. */
export const partOf = (bytes: Uint8Array, part: ByteSpan | undefined): AtHand => ({
  bytes: part ? bytes.subarray(part.from, part.to) : bytes,
  size: bytes.byteLength,
})
