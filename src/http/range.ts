// Range requests (RFC 9110 §14): the first range of a request, or the whole when it cannot be one.

export type Range = { readonly from: number; readonly to: number }

/** `undefined`: answer the whole. `unsatisfiable`: 416. `to` is the last byte, as in Content-Range. */
export function parseRange(header: string | undefined, size: number): Range | 'unsatisfiable' | undefined {
  const match = /^bytes=\s*(\d*)-(\d*)\s*(?:,.*)?$/i.exec(header ?? '')
  if (!match || (match[1] === '' && match[2] === '')) return undefined
  if (match[1] === '') {
    const length = Number(match[2])
    if (length === 0 || size === 0) return 'unsatisfiable'
    return { from: Math.max(0, size - length), to: size - 1 }
  }
  const from = Number(match[1])
  const to = match[2] === '' ? size - 1 : Number(match[2])
  if (match[2] !== '' && to < from) return undefined // no range at all, says the grammar
  if (from >= size) return 'unsatisfiable'
  return { from, to: Math.min(to, size - 1) }
}

/** What can be said of the range before the size is known: enough to ask upstreams for no more than is needed. */
export function rangeHint(header: string | undefined): { from: number; to?: number } | undefined {
  const match = /^bytes=\s*(\d+)-(\d*)\s*(?:,.*)?$/i.exec(header ?? '')
  if (!match) return undefined
  const from = Number(match[1])
  if (match[2] === '') return { from }
  return Number(match[2]) >= from ? { from, to: Number(match[2]) } : undefined
}
