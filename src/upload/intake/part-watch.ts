// Checks part headers on their way to the multipart parser. The parser would cut what is over its limits and go on; the
// gateway refuses an ambiguous upload instead.
import type { Failure } from '../../core/failure.ts'
import { malformed } from '../failures.ts'

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

export type PartWatchOptions = {
  readonly headerBytes: number
  readonly headerPairs: number
  /** The parts whose contents are kept: the content headers of other parts are not checked. */
  readonly parts: KeptParts
  /** Called for each part, before the parser has seen the end of its headers. */
  readonly onPart: (part: SeenPart) => void
}

/** `data`: parts of that name. `paths`: the same, as files of a directory. `every`: parts of any name. */
export type KeptParts = 'data' | 'paths' | 'every'

export type SeenPart = { readonly isData: boolean; readonly path: string | undefined }

/** The returned function checks each chunk and says what is wrong with it, or undefined. */
export function createPartWatch(
  boundary: string,
  options: PartWatchOptions,
): (chunk: Uint8Array) => Failure | undefined {
  const delimiter = Buffer.from(`\r\n--${boundary}`)
  const blank = Buffer.from('\r\n\r\n')
  // A body may begin with its first delimiter, without the line break before it.
  let rest: Buffer = Buffer.from('\r\n')
  let where: Where = 'preamble'

  /** What is left of the chunks before and this one. In the middle of a file it is this one alone: nothing is copied. */
  function joined(chunk: Uint8Array): Buffer {
    const own = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)
    if (where !== 'headers' && own.byteLength >= delimiter.byteLength) {
      const seam = Buffer.concat([rest, own.subarray(0, delimiter.byteLength - 1)])
      if (seam.indexOf(delimiter) === -1) return own
    }
    return Buffer.concat([rest, own])
  }

  return (chunk) => {
    if (where === 'epilogue') return undefined
    let text = joined(chunk)
    for (;;) {
      if (where === 'headers') {
        if (text.byteLength < 2) break
        if (text[0] === 0x2d && text[1] === 0x2d) {
          where = 'epilogue'
          rest = Buffer.alloc(0)
          return undefined
        }
        const end = text.indexOf(blank)
        if ((end === -1 ? text.byteLength : end) > options.headerBytes)
          return wrong(`over ${options.headerBytes} bytes`)
        if (end === -1) break
        const problem = problemOf(text.toString('latin1', 0, end), options)
        if (problem !== undefined) return wrong(problem)
        // The line break that ends the headers may begin the delimiter of an empty part.
        text = text.subarray(end + 2)
        where = 'body'
      }
      const at = text.indexOf(delimiter)
      if (at === -1) {
        // A copy, because a view would keep the whole chunk.
        text = Buffer.from(text.subarray(Math.max(0, text.byteLength - delimiter.byteLength + 1)))
        break
      }
      text = text.subarray(at + delimiter.byteLength)
      where = 'headers'
    }
    rest = text
    return undefined
  }
}

function problemOf(block: string, { headerPairs, parts, onPart }: PartWatchOptions): string | undefined {
  // Text before the first line break belongs to the delimiter's line. RFC 2046 §5.1.1 allows white space there, but our
  // parser would miss the delimiter and lose the part in silence; no client sends it, so it is refused. A line that begins
  // with white space continues a header.
  const [padding = '', ...lines] = block.replace(/\r\n(?=[ \t])/g, '').split('\r\n')
  if (padding !== '') return 'behind a boundary that is not one'
  if (lines.length > headerPairs) return `more than ${headerPairs}`
  const values = new Map<string, string>()
  const twice = new Set<string>()
  for (const line of lines) {
    if (hasControls(line)) return 'with control characters in them'
    const [, name = '', value = ''] = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*)$/.exec(line) ?? []
    if (name === '') return 'not of the form `name: value`'
    const key = name.toLowerCase()
    if (key.startsWith('content-') && values.has(key)) twice.add(key)
    values.set(key, value)
  }
  const disposition = values.get('content-disposition') ?? ''
  // Without it a part has no name, and the parser would skip it: RFC 7578 §4.2 requires one in every part.
  if (!/^form-data[ \t]*(;|$)/i.test(disposition)) return 'without a Content-Disposition of form-data'
  const part = twice.has('content-disposition') ? undefined : partNameOf(disposition)
  if (part === undefined) return 'with a Content-Disposition whose `name` can be read in two ways'
  const isData = part.name === 'data'
  onPart({ isData, path: part.path })
  if (!isData && parts !== 'every') return undefined
  if (parts === 'paths' && part.path === undefined)
    return 'without a file name that can be read in one way only: each file of a directory needs one, in UTF-8'
  for (const key of twice) return `with ${key} in them twice`
  const type = values.get('content-type') ?? ''
  if (/^multipart\//i.test(type)) return 'of a multipart within a multipart, which is not done here'
  return parts !== 'data' || part.isFile || isUtf8(type) ? undefined : 'of a text that is not UTF-8'
}

/** A type without a charset counts as UTF-8. */
function isUtf8(type: string): boolean {
  const charset = parametersOf(type)?.get('charset')
  if (charset === undefined && !/;\s*charset/i.test(type)) return true
  return /^(utf-?8|us-ascii)$/i.test(charset ?? '')
}

/** Control characters except the tab: below the space, and DEL. */
function hasControls(line: string): boolean {
  for (let index = 0; index < line.length; index++) {
    const code = line.charCodeAt(index)
    if ((code < 0x20 && code !== 0x09) || code === 0x7f) return true
  }
  return false
}

const wrong = (what: string): Failure => malformed(`the headers of a part are ${what}`)

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
