// Which answers are worth compressing: what is text, and neither small nor large.

/** Besides all of `text/`, and what is JSON or XML by the end of its name. */
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

/** The head of an answer has half of that: below it there is little to save. */
const leastBytes = 1024
/** A large file goes out as it is: a client whose connection broke can ask for the rest of it. */
export const mostBytes = 8 * 1024 * 1024

/** Undefined: not known yet. */
export type AboutBody = { readonly type?: string | undefined; readonly size?: number | undefined }

/** Whether there is another form of it than the plain one. What is not known may be so. */
export function isCompressible({ type, size }: AboutBody): boolean {
  if (size !== undefined && (size <= leastBytes || size > mostBytes)) return false
  if (type === undefined) return true
  const semicolon = type.indexOf(';')
  const name = semicolon < 0 ? type : type.slice(0, semicolon)
  return types.has(name) || name.startsWith('text/') || name.endsWith('+json') || name.endsWith('+xml')
}
