// Parses the text of a list, and rejects anything else. A login page at the URL, or a half-written
// file, must not disable the list: such a text never replaces one.
import { createHash } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import { createDenylist, type Denylist, type ListFault } from './denylist.ts'

export type ReadList = {
  readonly list: Denylist
  /** The hash of the text. */
  readonly digest: string
  /** The first of them. */
  readonly faults: readonly ListFault[]
  readonly faultCount: number
}

const mostFaultsTold = 10
const headBytes = 1024 * 1024
const pieceBytes = 256 * 1024

export async function readList(name: string, text: string): Promise<ReadList> {
  const list = createDenylist(name)
  const hash = createHash('sha256')
  const faults: ListFault[] = []
  let faultCount = 0
  for (const piece of pieces(text)) {
    hash.update(piece)
    const found = list.add(piece)
    faultCount += found.length
    faults.push(...found.slice(0, mostFaultsTold - faults.length))
    await setImmediate() // a large list must not block the event loop
  }
  return { list, digest: hash.digest('hex'), faults, faultCount }
}

/**
 * The reason not to replace a list of `rulesBefore` rules with this one; undefined means to accept
 * it.
 */
export function objection(
  { list, faults, faultCount }: ReadList,
  { rulesBefore, isEmptyOdd }: { readonly rulesBefore: number; readonly isEmptyOdd: boolean },
): string | undefined {
  if (faultCount * 2 > list.lines) {
    const [{ line, what } = { line: 0, what: '' }] = faults
    return `${faultCount} of its ${list.lines} lines make no sense, the first of them is line ${line} (${what})`
  }
  if (list.rules > 0) return undefined
  if (rulesBefore > 0) return `it has no rule, and had ${rulesBefore}`
  if (isEmptyOdd && !list.hasHeader) return 'it has neither a rule nor a header'
  return undefined
}

/** Splits at line ends; the first piece is large enough for the header of a list. */
function* pieces(text: string): Generator<string> {
  for (let from = 0; from < text.length; ) {
    const end = text.indexOf('\n', from + (from === 0 ? headBytes : pieceBytes))
    const to = end === -1 ? text.length : end + 1
    yield text.slice(from, to)
    from = to
  }
}
