// Selects responses worth compressing: text of medium size.

/** In addition to `text/*`, and types ending in +json or +xml. */
const types: ReadonlySet<string> = new Set([
  'application/json',
  'application/xml',
  'application/yaml',
  'application/toml',
  'application/wasm',
  'application/vnd.apple.mpegurl',
  'application/vnd.ipld.dag-json',
  'font/ttf',
  'font/otf',
])

/** About twice the size of the response head: below it compression saves little. */
const leastBytes = 1024
/**
 * A larger file is sent uncompressed, so that a client whose connection broke can resume with a
 * range.
 */
export const mostBytes = 8 * 1024 * 1024

/** Undefined means not yet known. */
export type AboutBody = { readonly type?: string | undefined; readonly size?: number | undefined }

/** True if the response has coded variants. Unknown type or size counts as true. */
export function isCompressible({ type, size }: AboutBody): boolean {
  if (size !== undefined && (size <= leastBytes || size > mostBytes)) return false
  if (type === undefined) return true
  const semicolon = type.indexOf(';')
  const name = semicolon < 0 ? type : type.slice(0, semicolon)
  return types.has(name) || name.startsWith('text/') || name.endsWith('+json') || name.endsWith('+xml')
}
