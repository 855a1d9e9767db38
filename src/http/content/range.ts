// Range requests (RFC 9110 §14): the first satisfiable range, or all bytes if the header is
// invalid.

/** `to` is inclusive, as in Content-Range. */
export type Range = { readonly from: number; readonly to: number }

/** Undefined means to send all bytes; `unsatisfiable` means 416. */
export function parseRange(header: string | undefined, size: number): Range | 'unsatisfiable' | undefined {
  // An empty file ignores ranges, as in nginx and Kubo, since caches request every file in ranges.
  if (size === 0) return undefined
  const specs = specsOf(header)
  if (!specs) return undefined
  for (const { first, last } of specs) {
    if (first === undefined) {
      const length = Math.min(last ?? 0, size)
      if (length > 0) return { from: size - length, to: size - 1 }
    } else if (first < size) return { from: first, to: Math.min(last ?? size - 1, size - 1) }
  }
  return 'unsatisfiable'
}

/**
 * The range as far as it is known without the size, so that upstreams are asked for no more than
 * that.
 */
export function rangeHint(header: string | undefined): { from: number; to?: number } | undefined {
  const [spec] = specsOf(header) ?? []
  if (spec?.first === undefined) return undefined
  return spec.last === undefined ? { from: spec.first } : { from: spec.first, to: spec.last }
}

/** Without `first` it is a suffix: the last `last` bytes. */
type Spec = { readonly first: number | undefined; readonly last: number | undefined }

/** One malformed range invalidates the header. */
function specsOf(header: string | undefined): Spec[] | undefined {
  const list = /^bytes=(.*)$/i.exec(header?.trim() ?? '')?.[1]
  if (list === undefined) return undefined
  const specs: Spec[] = []
  for (const text of list.split(',')) {
    if (text.trim() === '') continue
    const [, first = '', last = ''] = /^\s*(\d*)-(\d*)\s*$/.exec(text) ?? []
    if (first === '' && last === '') return undefined
    if (first !== '' && last !== '' && Number(last) < Number(first)) return undefined
    specs.push({ first: first === '' ? undefined : Number(first), last: last === '' ? undefined : Number(last) })
  }
  return specs.length > 0 ? specs : undefined
}
