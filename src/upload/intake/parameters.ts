// Parses the parameters of a Content-Type or a Content-Disposition (RFC 9110 §5.6.6, with white space round the equals sign).
// A malformed or repeated parameter is refused, because parsers differ in how they read it.

const parameter = /[ \t]*;[ \t]*(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^ \t;"]+)))?/y

/** By name, in lower case. Undefined: they are malformed or ambiguous. */
export function parametersOf(value: string): ReadonlyMap<string, string> | undefined {
  const found = new Map<string, string>()
  const text = value.replace(/[ \t]+$/, '')
  const begin = text.indexOf(';')
  parameter.lastIndex = begin === -1 ? text.length : begin
  while (parameter.lastIndex < text.length) {
    const match = parameter.exec(text)
    if (match === null) return undefined
    const [, name, quoted, plain] = match
    if (name === undefined) continue
    if (found.has(name.toLowerCase())) return undefined
    found.set(name.toLowerCase(), quoted?.replace(/\\(["\\])/g, '$1') ?? plain ?? '')
  }
  return found
}

const fileName = /[ \t]*;[ \t]*filename\*?[ \t]*=/i
const anotherName = /(?<!file)name\*?[ \t]*=/i

export type NamedPart = {
  readonly name: string | undefined
  readonly isFile: boolean
  /** The file name, unless parsers could read it in different ways. */
  readonly path: string | undefined
}

/**
 * The part name in a Content-Disposition. Undefined: it is ambiguous. The gateway uses the file name in directories only, and clients
 * send it unescaped: browsers with backslashes, `form-data` with quotes too. So it may have any form, up to the end of the
 * line, as long as nothing in it looks like another name of the part.
 */
export function partNameOf(disposition: string): NamedPart | undefined {
  const all = parametersOf(disposition)
  const at = all === undefined ? disposition.search(fileName) : -1
  const isOpen = at !== -1 && !anotherName.test(disposition.slice(at))
  const named = isOpen ? parametersOf(disposition.slice(0, at)) : all
  // RFC 7578 has no `name*`, and only some parsers take it for a name.
  if (named === undefined || named.has('name*')) return undefined
  const isFile = isOpen || named.has('filename') || named.has('filename*')
  return { name: named.get('name'), isFile, path: isOpen ? undefined : pathIn(named) }
}

/** The file name, where it has one meaning only: UTF-8, by `filename` or `filename*` (RFC 8187), or the same by both. */
function pathIn(named: ReadonlyMap<string, string>): string | undefined {
  const plain = named.get('filename')
  const extended = /^utf-8'[^']*'(.*)$/i.exec(named.get('filename*') ?? '')?.[1]
  if (named.has('filename*') && extended === undefined) return undefined
  try {
    const read = plain === undefined ? undefined : utf8.decode(Buffer.from(plain, 'latin1'))
    const decoded = extended === undefined ? undefined : decodeURIComponent(extended)
    return read === undefined || decoded === undefined || read === decoded ? (read ?? decoded) : undefined
  } catch {
    return undefined
  }
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
