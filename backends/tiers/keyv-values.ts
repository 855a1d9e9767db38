// How bytes travel through Keyv: as they are, where the store can carry them, or as text in its own wrapping.

export const bytesAsTheyAre = ({ value }: { value: unknown }): unknown => value

type Stored = { readonly value: Uint8Array; readonly expires?: number }

/** Text that is not what Keyv writes becomes bytes that prove nothing, so that it is dropped like any corrupt block. */
export function readText(text: string): Stored {
  try {
    const stored: { value?: unknown; expires?: unknown } = JSON.parse(text)
    if (typeof stored.value === 'string' && stored.value.startsWith(':base64:')) {
      const value = Buffer.from(stored.value.slice(':base64:'.length), 'base64')
      return typeof stored.expires === 'number' ? { value, expires: stored.expires } : { value }
    }
  } catch {
    // Not JSON: falls through.
  }
  return { value: Buffer.from(text) }
}

/** Bytes as a binary store returns them, or wrapped as Keyv keeps them. */
export function bytesOf(stored: unknown): Uint8Array | undefined {
  if (stored === undefined || stored === null) return undefined
  if (stored instanceof Uint8Array) return stored
  const value = typeof stored === 'object' && 'value' in stored ? stored.value : undefined
  return value instanceof Uint8Array ? value : Buffer.from(String(value))
}

export const asBuffer = (bytes: Uint8Array): Buffer => Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
