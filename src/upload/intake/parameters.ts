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

/**
 * The part name in a Content-Disposition. Undefined: it is ambiguous. The gateway does not use the file name, and clients
 * send it unescaped: browsers with backslashes, `form-data` with quotes too. So it may have any form, up to the end of the
 * line, as long as nothing in it looks like another name of the part.
 */
export function partNameOf(
  disposition: string,
): { readonly name: string | undefined; readonly isFile: boolean } | undefined {
  const all = parametersOf(disposition)
  const at = all === undefined ? disposition.search(fileName) : -1
  const isOpen = at !== -1 && !anotherName.test(disposition.slice(at))
  const named = isOpen ? parametersOf(disposition.slice(0, at)) : all
  // RFC 7578 has no `name*`, and only some parsers take it for a name.
  if (named === undefined || named.has('name*')) return undefined
  return { name: named.get('name'), isFile: isOpen || named.has('filename') || named.has('filename*') }
}
