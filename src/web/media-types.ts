// Media types of files in web mode: by the extension, then by the first bytes, then text or bytes.
// The table of extensions is our own, because large ones also have types that no site needs and
// browsers should not get (`.xul`).

const endings: Readonly<Record<string, string>> = {
  'text/html': 'html htm',
  'application/xhtml+xml': 'xhtml xht',
  'text/css': 'css',
  'text/javascript': 'js mjs cjs',
  'application/json': 'json map topojson',
  'application/ld+json': 'jsonld',
  'application/geo+json': 'geojson',
  'application/manifest+json': 'webmanifest',
  'application/xml': 'xml xsd rng',
  'application/rss+xml': 'rss',
  'application/atom+xml': 'atom',
  'application/wasm': 'wasm',

  'text/plain': 'txt text log ini conf cfg env asc diff patch',
  'text/markdown': 'md markdown',
  'text/csv': 'csv',
  'text/tab-separated-values': 'tsv',
  'text/vtt': 'vtt',
  'text/calendar': 'ics',
  'text/vcard': 'vcf',
  'application/yaml': 'yaml yml',
  'application/toml': 'toml',
  'text/x-source': 'ts tsx jsx py rb rs go c h cc cpp hpp java kt swift cs php pl lua sh bash zsh fish sol sql vue',

  'image/png': 'png',
  'image/apng': 'apng',
  'image/jpeg': 'jpg jpeg jfif jpe',
  'image/gif': 'gif',
  'image/webp': 'webp',
  'image/avif': 'avif',
  'image/heic': 'heic',
  'image/heif': 'heif',
  'image/jxl': 'jxl',
  'image/bmp': 'bmp',
  'image/tiff': 'tif tiff',
  'image/x-icon': 'ico cur',
  'image/svg+xml': 'svg',

  'video/mp4': 'mp4 m4v',
  'video/webm': 'webm',
  'video/ogg': 'ogv',
  'video/quicktime': 'mov qt',
  'video/x-matroska': 'mkv',
  'video/mp2t': 'm2ts',
  'video/x-msvideo': 'avi',
  'video/mpeg': 'mpg mpeg',
  'audio/mpeg': 'mp3',
  'audio/mp4': 'm4a',
  'audio/aac': 'aac',
  'audio/ogg': 'ogg oga opus',
  'audio/wav': 'wav',
  'audio/flac': 'flac',
  'audio/midi': 'mid midi',
  'audio/webm': 'weba',
  'application/vnd.apple.mpegurl': 'm3u8',
  'application/dash+xml': 'mpd',

  'font/woff2': 'woff2',
  'font/woff': 'woff',
  'font/ttf': 'ttf',
  'font/otf': 'otf',
  'font/collection': 'ttc',
  'application/vnd.ms-fontobject': 'eot',

  'application/pdf': 'pdf',
  'application/epub+zip': 'epub',
  'application/rtf': 'rtf',
  'application/msword': 'doc',
  'application/vnd.openxmlformats-officedocument.wordprocessingml.document': 'docx',
  'application/vnd.ms-excel': 'xls',
  'application/vnd.openxmlformats-officedocument.spreadsheetml.sheet': 'xlsx',
  'application/vnd.ms-powerpoint': 'ppt',
  'application/vnd.openxmlformats-officedocument.presentationml.presentation': 'pptx',
  'application/vnd.oasis.opendocument.text': 'odt',
  'application/vnd.oasis.opendocument.spreadsheet': 'ods',
  'application/vnd.oasis.opendocument.presentation': 'odp',
  'model/gltf+json': 'gltf',
  'model/gltf-binary': 'glb',
  'model/stl': 'stl',
  'model/obj': 'obj',

  'application/zip': 'zip',
  'application/gzip': 'gz tgz',
  'application/x-tar': 'tar',
  'application/x-bzip2': 'bz2',
  'application/x-xz': 'xz',
  'application/zstd': 'zst',
  'application/x-7z-compressed': '7z',
  'application/vnd.rar': 'rar',
  'application/java-archive': 'jar',
  'application/vnd.sqlite3': 'sqlite sqlite3',
  'application/vnd.ipld.car': 'car',
  'application/cbor': 'cbor',
  'application/vnd.apache.parquet': 'parquet',
  'application/octet-stream': 'bin exe dll iso img dmg deb rpm msi apk',
}

// Browsers offer to save source code under a type of its language.
const shown: Readonly<Record<string, string>> = { 'text/x-source': 'text/plain' }

const byEnding: ReadonlyMap<string, string> = new Map(
  Object.entries(endings).flatMap(([type, names]) => names.split(' ').map((ending) => [ending, shown[type] ?? type])),
)

/** The type without a charset; undefined if the name has no conclusive extension. */
export function typeByName(name: string): string | undefined {
  const dot = name.lastIndexOf('.')
  return dot < 0 ? undefined : byEnding.get(name.slice(dot + 1).toLowerCase())
}

export type FileType = {
  /** Set if the name determines the type. */
  readonly byName: string | undefined
  /** False if the name determines the type. */
  readonly mayBeJson: boolean
  /**
   * Detects the type from the first `sniffedBytes`, so that every range of a file has the same
   * type.
   */
  readonly byBytes: (start: Uint8Array, size: number) => string
}

/** Bytes read to detect the type: enough for the comments that some tools put before an SVG. */
export const sniffedBytes = 1024

/**
 * A wrong name is harmless: with `nosniff` a browser takes the bytes as the declared type only.
 */
export function fileType(name: string): FileType {
  const named = typeByName(name)
  const isText = named?.startsWith('text/') ?? false
  return {
    byName: isText ? undefined : named,
    mayBeJson: named === undefined,
    byBytes(start, size) {
      const bytes = start.subarray(0, sniffedBytes)
      const head = { bytes, isCut: bytes.byteLength < size }
      if (named !== undefined) return isText ? withCharset(named, head) : named
      return typeByBytes(bytes) ?? typeByText(head) ?? 'application/octet-stream'
    },
  }
}

type Sign = { readonly type: string; readonly at?: number; readonly bytes: readonly number[] }

const ascii = (text: string): number[] => Array.from(text, (char) => char.charCodeAt(0))

/** Certain signatures only: everything else is text or bytes. */
const signs: readonly Sign[] = [
  { type: 'image/png', bytes: [0x89, ...ascii('PNG\r\n\x1a\n')] },
  { type: 'image/jpeg', bytes: [0xff, 0xd8, 0xff] },
  { type: 'image/gif', bytes: ascii('GIF87a') },
  { type: 'image/gif', bytes: ascii('GIF89a') },
  { type: 'image/jxl', bytes: [0, 0, 0, 0x0c, ...ascii('JXL \r\n'), 0x87, 0x0a] },
  { type: 'image/tiff', bytes: [...ascii('II'), 0x2a, 0] },
  { type: 'image/tiff', bytes: [...ascii('MM'), 0, 0x2a] },
  { type: 'image/x-icon', bytes: [0, 0, 1, 0] },
  { type: 'application/pdf', bytes: ascii('%PDF-') },
  { type: 'audio/ogg', bytes: ascii('OggS') },
  { type: 'audio/flac', bytes: ascii('fLaC') },
  { type: 'audio/mpeg', bytes: ascii('ID3') },
  { type: 'audio/midi', bytes: ascii('MThd') },
  { type: 'application/gzip', bytes: [0x1f, 0x8b, 8] },
  { type: 'application/x-bzip2', bytes: ascii('BZh') },
  { type: 'application/x-xz', bytes: [0xfd, ...ascii('7zXZ'), 0] },
  { type: 'application/zstd', bytes: [0x28, 0xb5, 0x2f, 0xfd] },
  { type: 'application/x-7z-compressed', bytes: [...ascii('7z'), 0xbc, 0xaf, 0x27, 0x1c] },
  { type: 'application/vnd.rar', bytes: [...ascii('Rar!'), 0x1a, 7] },
  { type: 'application/x-tar', at: 257, bytes: ascii('ustar') },
  { type: 'application/wasm', bytes: [0, ...ascii('asm')] },
  { type: 'application/vnd.sqlite3', bytes: [...ascii('SQLite format 3'), 0] },
  { type: 'font/woff2', bytes: ascii('wOF2') },
  { type: 'font/woff', bytes: ascii('wOFF') },
  { type: 'font/otf', bytes: ascii('OTTO') },
  { type: 'font/ttf', bytes: [0, 1, 0, 0, 0] },
  { type: 'font/collection', bytes: ascii('ttcf') },
  { type: 'model/gltf-binary', bytes: [...ascii('glTF'), 2] },
]

function typeByBytes(start: Uint8Array): string | undefined {
  const found = signs.find(({ at = 0, bytes }) => holds(start, at, bytes))
  return found?.type ?? container(start)
}

const holds = (start: Uint8Array, at: number, bytes: readonly number[]): boolean =>
  start.byteLength >= at + bytes.length && bytes.every((byte, index) => start[at + index] === byte)

const textAt = (start: Uint8Array, from: number, to: number): string =>
  String.fromCharCode(...start.subarray(from, Math.min(to, start.byteLength)))

/** Formats that share their first bytes with others and name themselves later. */
function container(start: Uint8Array): string | undefined {
  if (textAt(start, 0, 4) === 'RIFF') return riff[textAt(start, 8, 12)]
  if (textAt(start, 4, 8) === 'ftyp') return isoBrand(textAt(start, 8, 12), start)
  if (holds(start, 0, [0x1a, 0x45, 0xdf, 0xa3]))
    return textAt(start, 0, 64).includes('webm') ? 'video/webm' : 'video/x-matroska'
  if (holds(start, 0, [...ascii('PK'), 3, 4])) return zip(start)
  if (textAt(start, 0, 2) === 'BM' && holds(start, 6, [0, 0, 0, 0])) return 'image/bmp'
  // An MPEG audio frame without a tag before it: layer III of any version.
  if (start[0] === 0xff && [0xfb, 0xfa, 0xf3, 0xf2].includes(start[1] ?? 0)) return 'audio/mpeg'
  if (start[0] === 0xff && [0xf1, 0xf9].includes(start[1] ?? 0)) return 'audio/aac'
  return undefined
}

const riff: Readonly<Record<string, string>> = { WEBP: 'image/webp', WAVE: 'audio/wav', 'AVI ': 'video/x-msvideo' }

function isoBrand(brand: string, start: Uint8Array): string {
  if (brand === 'avif' || brand === 'avis') return 'image/avif'
  if (/^(heic|heix|hevc)$/.test(brand)) return 'image/heic'
  // A brand shared by several formats: the compatible brands tell which one it is.
  if (brand === 'mif1' || brand === 'msf1') return textAt(start, 16, 64).includes('avif') ? 'image/avif' : 'image/heif'
  if (brand === 'qt  ') return 'video/quicktime'
  if (brand === 'M4A ' || brand === 'M4B ') return 'audio/mp4'
  return 'video/mp4'
}

/** The first file of some archives names their type. */
function zip(start: Uint8Array): string {
  const first = textAt(start, 30, 120)
  if (first.startsWith('mimetypeapplication/epub+zip')) return 'application/epub+zip'
  const opendocument = /^mimetype(application\/vnd\.oasis\.opendocument\.(?:text|spreadsheet|presentation))/.exec(first)
  return opendocument?.[1] ?? 'application/zip'
}

/** The first bytes; `isCut`: more follow, so the last character may be incomplete. */
type Start = { readonly bytes: Uint8Array; readonly isCut: boolean }

// White space, and the escape that terminals write.
const allowedControls: ReadonlySet<number> = new Set([0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x1b])
const isControl = (byte: number): boolean => (byte < 0x20 || byte === 0x7f) && !allowedControls.has(byte)
// The elements by which the WHATWG sniffing standard detects HTML, and those of HTML 5.
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

function typeByText(start: Start): string | undefined {
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

/** Skips white space, comments and processing instructions. */
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

/** Adds a charset for UTF-8 only: it would override the declaration of a page in another encoding. */
function withCharset(type: string, start: Start): string {
  const text = decode(start)
  if (text === undefined) return type
  const declared = type === 'text/html' ? declaredCharset.exec(text)?.[1] : undefined
  return declared === undefined || /^utf-?8$/i.test(declared) ? `${type}; charset=utf-8` : type
}
