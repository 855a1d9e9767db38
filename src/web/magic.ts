// Media types by the first bytes of a file. Only certain signatures: everything else is text or bytes.

type Sign = { readonly type: string; readonly at?: number; readonly bytes: readonly number[] }

const ascii = (text: string): number[] => Array.from(text, (char) => char.charCodeAt(0))

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

export function typeByBytes(start: Uint8Array): string | undefined {
  const found = signs.find(({ at = 0, bytes }) => holds(start, at, bytes))
  return found?.type ?? container(start)
}

const holds = (start: Uint8Array, at: number, bytes: readonly number[]): boolean =>
  start.byteLength >= at + bytes.length && bytes.every((byte, index) => start[at + index] === byte)

const textAt = (start: Uint8Array, from: number, to: number): string =>
  String.fromCharCode(...start.subarray(from, Math.min(to, start.byteLength)))

/** Formats that share their beginning with others and say a little later which one they are. */
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

/** The first file of some archives says what the whole is. */
function zip(start: Uint8Array): string {
  const first = textAt(start, 30, 120)
  if (first.startsWith('mimetypeapplication/epub+zip')) return 'application/epub+zip'
  const opendocument = /^mimetype(application\/vnd\.oasis\.opendocument\.(?:text|spreadsheet|presentation))/.exec(first)
  return opendocument?.[1] ?? 'application/zip'
}
