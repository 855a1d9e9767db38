// Paths that are never forwarded, because a service could resolve them to outside the configured
// path. Some services decode before they resolve `..`, some decode twice, some strip parameters
// (`;…`) or spaces.

// No legitimate path is encoded more often; each round costs the length of the path.
const mostDecoded = 5

/** Undefined if the path may be forwarded. */
export function wrongPath(path: string): string | undefined {
  if (!isDecodable(path)) return 'the path is not well-formed percent-encoding'
  const isDots = (segment: string) => /^ *\.{1,2} *(;|$)/.test(segment)
  const { length: slashes } = path.split('/')
  let text = path
  for (let round = 0; round < mostDecoded; round++) {
    const segments = text.split('/')
    if (segments.length > slashes || text.includes('\\')) return 'a path cannot hold encoded slashes, or backslashes'
    if (segments.some(isDots)) return 'a path cannot hold . or .. segments'
    if (/[^\x20-\x7e\x80-\xff]/.test(text)) return 'a path cannot hold control characters'
    const next = text.replace(/%([0-9a-f]{2})/gi, (_all, code) => String.fromCharCode(Number.parseInt(code, 16)))
    if (next === text) return undefined
    text = next
  }
  return 'the path is encoded too often'
}

function isDecodable(path: string): boolean {
  try {
    decodeURIComponent(path)
    return true
  } catch {
    return false
  }
}
