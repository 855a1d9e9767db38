// Media types by file extension: those of websites and documents. A table of our own, because large ones also have
// types that no site needs and browsers should not get (`.xul`).

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

// Source code is shown as the text it is: a browser would offer to save any type that names its language.
const shown: Readonly<Record<string, string>> = { 'text/x-source': 'text/plain' }

const byEnding: ReadonlyMap<string, string> = new Map(
  Object.entries(endings).flatMap(([type, names]) => names.split(' ').map((ending) => [ending, shown[type] ?? type])),
)

/** Without a charset. Undefined for a name without an ending, or with one that says nothing. */
export function typeByName(name: string): string | undefined {
  const dot = name.lastIndexOf('.')
  return dot < 0 ? undefined : byEnding.get(name.slice(dot + 1).toLowerCase())
}
