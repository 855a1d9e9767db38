// Scans a document without creating objects: creating those of 2 MiB of dag-cbor or dag-json would
// block the event loop for half a second. A scan stops after a slice of work and can be resumed. It
// accepts what the libraries of the ecosystem accept.

/**
 * Called for each part of the document in order. A visitor without `structure` receives links only.
 */
export interface DocumentVisitor {
  /** The bytes of the CID, valid for `CID.decode`. */
  link(bytes: Uint8Array, from: number, to: number): void
  readonly structure?: DocumentStructure
}

export interface DocumentStructure {
  open(isList: boolean): void
  close(): void
  key(name: string): void
  /** The offsets of its bytes; for text and bytes in dag-json those between the quotes. */
  scalar(kind: ScalarKind, from: number, to: number): void
}

export type ScalarKind = 'text' | 'bytes' | 'other'

export const wrongDocument = (what: string): Error => new Error(`the document ${what}`)

/** The nesting limit: more than the recursive libraries can read. */
const maxDepth = 16_384

/** Detects duplicate keys of a map. Most maps have few keys, and need no Set. */
class Names {
  private only: string | undefined
  private all: Set<string> | undefined

  add(name: string): void {
    if (this.only === undefined) {
      this.only = name
      return
    }
    this.all ??= new Set([this.only])
    if (this.all.has(name)) throw wrongDocument(`has the key ${JSON.stringify(name.slice(0, 64))} twice in one map`)
    this.all.add(name)
  }
}

export abstract class DocumentScan {
  protected readonly bytes: Uint8Array
  protected readonly visitor: DocumentVisitor
  protected at = 0
  /** Work units until the next stop: one for an item, more for long ones. */
  protected room = 0
  protected depth = 0
  protected isInMap = false
  /**
   * The remaining or the finished items of the innermost list or map, depending on the encoding.
   */
  protected count = 0
  private isOver = false
  private maps = new Uint8Array(16)
  private counts = new Float64Array(16)
  private readonly names: (Names | undefined)[] = []

  constructor(bytes: Uint8Array, visitor: DocumentVisitor) {
    this.bytes = bytes
    this.visitor = visitor
  }

  /** Scans about `work` items; true at the end of the document. Throws if it is malformed. */
  advance(work: number): boolean {
    this.room = work
    while (!this.isOver && this.room > 0) {
      this.room--
      this.item()
    }
    return this.isOver
  }

  protected abstract item(): void

  protected begin(isMap: boolean, count: number): void {
    const at = this.depth++
    if (at >= maxDepth) throw wrongDocument('is nested too deep')
    if (at >= this.maps.length) this.deepen()
    this.maps[at] = isMap ? 1 : 0
    if (at > 0) this.counts[at - 1] = this.count
    this.count = count
    this.isInMap = isMap
    this.names[at] = undefined
    this.visitor.structure?.open(!isMap)
  }

  protected end(): void {
    const above = --this.depth - 1
    this.names[above + 1] = undefined
    this.isInMap = above >= 0 && this.maps[above] === 1
    this.count = above >= 0 ? (this.counts[above] as number) : 0
    this.visitor.structure?.close()
  }

  protected finish(): void {
    if (this.at !== this.bytes.byteLength) throw wrongDocument('has bytes after its end')
    this.isOver = true
  }

  protected noteName(name: string): void {
    const at = this.depth - 1
    const names = this.names[at] ?? new Names()
    this.names[at] = names
    names.add(name)
    this.visitor.structure?.key(name)
  }

  /** Charges extra work for a long string or a CID. */
  protected spend(work: number): void {
    this.room -= work
  }

  private deepen(): void {
    const { maps, counts } = this
    this.maps = new Uint8Array(maps.length * 2)
    this.maps.set(maps)
    this.counts = new Float64Array(counts.length * 2)
    this.counts.set(counts)
  }
}

const sha256Digest = 0x1220
const v0 = 0x12
const longestNumber = 9

/**
 * True if `CID.decode` would accept the bytes: version, codec, hash, and a digest of the declared
 * length.
 */
export function isCidAt(bytes: Uint8Array, from: number, to: number): boolean {
  if (to - from === 34 && bytes[from] === v0 && bytes[from + 1] === 32) return true
  if (to - from === 36 && bytes[from] === 1 && (bytes[from + 1] as number) < 0x80)
    if (((bytes[from + 2] as number) << 8) + (bytes[from + 3] as number) === sha256Digest) return true
  // Fast path: common CIDs have numbers of one byte each.
  if (to - from >= 4 && bytes[from] === 1 && ((bytes[from + 1] as number) | (bytes[from + 2] as number)) < 0x80)
    if ((bytes[from + 3] as number) < 0x80) return from + 4 + (bytes[from + 3] as number) === to
  let at = from
  /** -1 for an invalid number: longer than necessary, or than the library reads. */
  const number = (): number => {
    let value = 0
    const end = Math.min(to, at + longestNumber)
    for (let factor = 1; at < end; factor *= 128) {
      const byte = bytes[at++] as number
      value += (byte & 0x7f) * factor
      if (byte >= 0x80) continue
      const isPadded = byte === 0 && factor > 1
      return !isPadded && value <= Number.MAX_SAFE_INTEGER ? value : -1
    }
    return -1
  }
  const version = number()
  if (version !== v0) {
    if (version !== 0 && version !== 1) return false
    if (number() < 0 || number() < 0) return false
  }
  const length = number()
  return length >= 0 && at + length === to
}
