// Looks at part headers on their way to the parser. The parser cuts what is over its limits and goes on with the rest; an
// upload that needs guessing is refused instead.
import type { Failure } from '../failure.ts'
import { malformed } from './failures.ts'
import { parametersOf } from './parameters.ts'

const longestBoundary = 70
const boundaryForm = /^[0-9A-Za-z'()+_,./:=? -]*[0-9A-Za-z'()+_,./:=?-]$/

/** RFC 2046 §5.1.1: 1 to 70 characters of these, not ending in a space. */
export function boundaryOf(contentType: string | undefined): string {
  if (!/^multipart\/form-data\s*(;|$)/i.test(contentType ?? ''))
    throw malformed('an upload is multipart/form-data, with a part named `data`')
  const parameters = parametersOf(contentType ?? '')
  if (parameters === undefined)
    throw malformed('the Content-Type of an upload has each parameter once, in the form name=value')
  const boundary = parameters.get('boundary') ?? ''
  if (boundary.length === 0 || boundary.length > longestBoundary || !boundaryForm.test(boundary))
    throw malformed(`the boundary of a multipart body has 1 to ${longestBoundary} characters of RFC 2046`)
  return boundary
}

type Where = 'preamble' | 'headers' | 'body' | 'epilogue'

/** The answer looks at each chunk and says what is wrong with it, if anything is. */
export function createPartWatch(
  boundary: string,
  limits: { readonly headerBytes: number; readonly headerPairs: number },
): (chunk: Uint8Array) => Failure | undefined {
  const delimiter = Buffer.from(`\r\n--${boundary}`)
  const blank = Buffer.from('\r\n\r\n')
  // A body may begin with its first delimiter, without the line break before it.
  let rest: Buffer = Buffer.from('\r\n')
  let where: Where = 'preamble'

  return (chunk) => {
    if (where === 'epilogue') return undefined
    let text = Buffer.concat([rest, chunk])
    for (;;) {
      if (where === 'headers') {
        if (text.byteLength < 2) break
        if (text[0] === 0x2d && text[1] === 0x2d) {
          where = 'epilogue'
          rest = Buffer.alloc(0)
          return undefined
        }
        const end = text.indexOf(blank)
        if ((end === -1 ? text.byteLength : end) > limits.headerBytes) return wrong(`over ${limits.headerBytes} bytes`)
        if (end === -1) break
        const problem = problemOf(text.toString('latin1', 0, end), limits.headerPairs)
        if (problem !== undefined) return wrong(problem)
        // The line break that ends the headers may begin the delimiter of an empty part.
        text = text.subarray(end + 2)
        where = 'body'
      }
      const at = text.indexOf(delimiter)
      if (at === -1) {
        text = text.subarray(Math.max(0, text.byteLength - delimiter.byteLength + 1))
        break
      }
      text = text.subarray(at + delimiter.byteLength)
      where = 'headers'
    }
    rest = text
    return undefined
  }
}

function problemOf(block: string, mostPairs: number): string | undefined {
  // What stands before the first line break belongs to the delimiter's line. RFC 2046 §5.1.1 allows white space there, our
  // parser does not know it for a delimiter then, and nobody sends it: a part must not be lost in silence. A header goes on
  // in a line that begins with white space.
  const [padding = '', ...lines] = block.replace(/\r\n(?=[ \t])/g, '').split('\r\n')
  if (padding !== '') return 'behind a boundary that is not one'
  if (lines.length > mostPairs) return `more than ${mostPairs}`
  const values = new Map<string, string>()
  for (const line of lines) {
    if (hasControls(line)) return 'with control characters in them'
    const [, name = '', value = ''] = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*)$/.exec(line) ?? []
    if (name === '') return 'not of the form `name: value`'
    const key = name.toLowerCase()
    if (key.startsWith('content-') && values.has(key)) return `with ${name} in them twice`
    values.set(key, value)
  }
  return problemOfContent(values.get('content-disposition') ?? '', values.get('content-type') ?? '')
}

function problemOfContent(disposition: string, type: string): string | undefined {
  // Without it a part has no name, and would be passed over: RFC 7578 §4.2 wants one with every part.
  if (!/^form-data[ \t]*(;|$)/i.test(disposition)) return 'without a Content-Disposition of form-data'
  const named = parametersOf(disposition)
  // `name*` is not of RFC 7578, and a name to some parsers alone.
  if (named === undefined || named.has('name*')) return 'with a Content-Disposition that says two things, or none'
  if (/^multipart\//i.test(type)) return 'of a multipart within a multipart, which is not done here'
  if (named.has('filename') || named.has('filename*')) return undefined
  const charset = parametersOf(type)?.get('charset')
  if (charset === undefined && !/;\s*charset/i.test(type)) return undefined
  return /^(utf-?8|us-ascii)$/i.test(charset ?? '') ? undefined : 'of a text that is not UTF-8'
}

/** Anything below a space but a tab, and DEL. */
function hasControls(line: string): boolean {
  for (let index = 0; index < line.length; index++) {
    const code = line.charCodeAt(index)
    if ((code < 0x20 && code !== 0x09) || code === 0x7f) return true
  }
  return false
}

const wrong = (what: string): Failure => malformed(`the headers of a part are ${what}`)
