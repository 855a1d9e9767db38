// The media type of a file in web mode: by name, then by its first bytes, then text or bytes. A wrong name is harmless:
// with `nosniff` a browser takes the bytes as the declared type only.
import { typeByBytes } from './magic.ts'
import { typeByName } from './media-types.ts'
import { typeByText, withCharset } from './text.ts'

export type FileType = {
  /** Known without a look at the bytes. */
  readonly byName: string | undefined
  /** False where the name settles the type. */
  readonly mayBeJson: boolean
  /** From the first bytes, always the same number of them, so that every part of a file has the type of the whole. */
  readonly byBytes: (start: Uint8Array, size: number) => string
}

/** Bytes read to detect the type: enough for the comments that some tools put before an SVG. */
export const sniffedBytes = 1024

export function fileType(name: string): FileType {
  const named = typeByName(name)
  const isText = named?.startsWith('text/') ?? false
  return {
    byName: isText ? undefined : named,
    mayBeJson: named === undefined,
    byBytes(start, size) {
      const bytes = start.subarray(0, sniffedBytes)
      const head = { bytes, isCut: bytes.byteLength < size }
      if (named !== undefined) return isText ? withCharset(named, head) : named
      return typeByBytes(bytes) ?? typeByText(head) ?? 'application/octet-stream'
    },
  }
}
