// The parameters of a Content-Type or a Content-Disposition. What is not of their form (RFC 9110 §5.6.6, with white space
// round the equals sign), or says one thing twice, is read by one parser so and by another otherwise: it is not guessed.

const parameter = /[ \t]*;[ \t]*(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^ \t;"]+)))?/y

/** By name, in lower case. Undefined: they can be read in more than one way, or in none. */
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
 * What a Content-Disposition calls its part. Undefined: that can be read in more than one way. A file name is nothing to us,
 * and clients put it in as it is: browsers with its backslashes, `form-data` with its quotes too. So it may have any form, up
 * to the end of the line, as long as nothing in it looks like another name of the part.
 */
export function partNameOf(
  disposition: string,
): { readonly name: string | undefined; readonly isFile: boolean } | undefined {
  const all = parametersOf(disposition)
  const at = all === undefined ? disposition.search(fileName) : -1
  const isOpen = at !== -1 && !anotherName.test(disposition.slice(at))
  const named = isOpen ? parametersOf(disposition.slice(0, at)) : all
  // `name*` is not of RFC 7578, and a name to some parsers alone.
  if (named === undefined || named.has('name*')) return undefined
  return { name: named.get('name'), isFile: isOpen || named.has('filename') || named.has('filename*') }
}
