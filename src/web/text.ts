// Detects text, markup and the encoding from the first bytes of a file.

/** The first bytes; `isCut`: more follow, so the last character may be incomplete. */
export type Start = { readonly bytes: Uint8Array; readonly isCut: boolean }

// White space, and the escape that terminals write.
const allowedControls: ReadonlySet<number> = new Set([0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x1b])
const isControl = (byte: number): boolean => (byte < 0x20 || byte === 0x7f) && !allowedControls.has(byte)
// The elements that the WHATWG sniffing standard takes for the beginning of HTML, and those of HTML 5.
const html =
  /^<(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p|main|section|article|nav|header|meta|link)(?:[\s/>]|$)/i
const svg = /^<(?:!doctype svg|svg:svg|svg)(?:[\s>]|$)/i
const utf8 = 'text/plain; charset=utf-8'

/** As UTF-8; undefined for anything else. */
function decode({ bytes, isCut }: Start): string | undefined {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes, { stream: isCut })
  } catch {
    return undefined
  }
}

export function typeByText(start: Start): string | undefined {
  const { bytes } = start
  if (bytes[0] === 0xff && bytes[1] === 0xfe) return 'text/plain; charset=utf-16le'
  if (bytes[0] === 0xfe && bytes[1] === 0xff) return 'text/plain; charset=utf-16be'
  const text = bytes.some(isControl) ? undefined : decode(start)
  if (text === undefined) return undefined
  const first = firstElement(text)
  if (svg.test(first)) return 'image/svg+xml'
  if (html.test(first)) return withCharset('text/html', start)
  return /^\s*<\?xml[\s?]/.test(text) ? 'application/xml' : utf8
}

/** Behind white space, comments and processing instructions. */
function firstElement(text: string): string {
  let rest = text.trimStart()
  for (;;) {
    const end = rest.startsWith('<!--')
      ? rest.indexOf('-->', 4) + 3
      : rest.startsWith('<?')
        ? rest.indexOf('?>') + 2
        : 0
    if (end < 3) return rest
    rest = rest.slice(end).trimStart()
  }
}

const declaredCharset = /<meta\s[^>]{0,200}charset\s*=\s*["']?\s*([\w-]+)/i

/** Adds a charset only for UTF-8: a page in another encoding declares it itself, and a wrong charset here would win. */
export function withCharset(type: string, start: Start): string {
  const text = decode(start)
  if (text === undefined) return type
  const declared = type === 'text/html' ? declaredCharset.exec(text)?.[1] : undefined
  return declared === undefined || /^utf-?8$/i.test(declared) ? `${type}; charset=utf-8` : type
}
