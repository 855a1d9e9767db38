// The parameters of a Content-Type or a Content-Disposition. What is not of their form (RFC 9110 §5.6.6), or says one thing
// twice, is read by one parser so and by another otherwise: it is not guessed.

const parameter = /[ \t]*;[ \t]*(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^ \t;"]+)))?/y

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
