// Detects JSON: UTF-8 that parses, with an object or an array at the top. A byte order mark may
// precede it, as some editors write one and `response.json()` ignores it (RFC 8259 §8.1). The
// detector works piece by piece without building values: JSON.parse of 8 MiB blocks the event loop
// for a second, and the objects of 300 MiB could exhaust memory.
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { upTo } from '../core/cache.ts'
import { textOf } from '../core/cid.ts'
import { orAborted } from '../core/clock.ts'
import type { Session } from '../retrieval/session.ts'

const spaces: ReadonlySet<number> = new Set([0x20, 0x0a, 0x0d, 0x09])
const [openBrace, openBracket] = [0x7b, 0x5b]
const byteOrderMark: readonly number[] = [0xef, 0xbb, 0xbf]

/**
 * True if these first bytes could begin such a document; otherwise the rest of the file is not
 * read.
 */
export function mayBeJson(first: Uint8Array): boolean {
  let at = 0
  while (at < byteOrderMark.length && first[at] === byteOrderMark[at]) at++
  // The bytes may end within a byte order mark.
  const begins = at === byteOrderMark.length || at === first.byteLength ? at : 0
  for (const byte of first.subarray(begins)) {
    if (spaces.has(byte)) continue
    return byte === openBrace || byte === openBracket
  }
  return true // only white space so far
}

// A punctuation mark, the beginning of a text, or a complete number or literal.
const token =
  /[ \t\n\r]*(?:[{}[\],:"]|(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?=[ \t\n\r,\]}]))/y
// Within a text: plain characters, an escape, or the end.
const textPart = /[ !#-[\]-\uffff]+|\\(?:["\\/bfnrt]|u[\da-fA-F]{4})|"/y
const unfinishedToken = /^[-+.\w]*$/
const unfinishedEscape = /^\\(?:u[\da-fA-F]{0,3})?$/
// A longer number is not JSON here: its beginning is read again with each piece.
const maxNumberChars = 64 * 1024

type Next = 'container' | 'value' | 'value or end' | 'key' | 'key or end' | 'colon' | 'comma or end' | 'nothing'

export function createJsonJudge() {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  /** The open containers, 1 for an object: one byte each, because there may be as many as bytes. */
  let open = new Uint8Array(16)
  let depth = 0
  let next: Next | undefined = 'container'
  let isInText = false
  /** The beginning of a token or an escape that has not ended. */
  let begun = ''

  const isInObject = (): boolean => open[depth - 1] === 1

  function enter(isObject: boolean): Next {
    if (depth === open.length) {
      const larger = new Uint8Array(2 * depth)
      larger.set(open)
      open = larger
    }
    open[depth++] = isObject ? 1 : 0
    return isObject ? 'key or end' : 'value or end'
  }

  /** `mark`: the last character of the token. Undefined if the token may not follow here. */
  function after(mark: string): Next | undefined {
    if (mark === '}' || mark === ']') {
      const mayEnd = next === 'comma or end' || next === 'key or end' || next === 'value or end'
      if (!mayEnd || isInObject() !== (mark === '}')) return undefined
      return --depth === 0 ? 'nothing' : 'comma or end'
    }
    switch (next) {
      case 'container':
      case 'value':
      case 'value or end':
        if (mark === '{' || mark === '[') return enter(mark === '{')
        return next === 'container' || mark === ',' || mark === ':' ? undefined : 'comma or end'
      case 'key':
      case 'key or end':
        return mark === '"' ? 'colon' : undefined
      case 'colon':
        return mark === ':' ? 'value' : undefined
      case 'comma or end':
        if (mark !== ',') return undefined
        return isInObject() ? 'key' : 'value'
      default:
        return undefined
    }
  }

  /** Returns what is left: a beginning. Undefined if the text cannot become such a document. */
  function scan(text: string): string | undefined {
    for (let at = 0; ; ) {
      const part = isInText ? textPart : token
      part.lastIndex = at
      if (!part.test(text)) {
        const rest = text.slice(at)
        if (isInText) return rest === '' || unfinishedEscape.test(rest) ? rest : undefined
        const beginning = rest.replace(/^[ \t\n\r]+/, '')
        return beginning.length <= maxNumberChars && unfinishedToken.test(beginning) ? beginning : undefined
      }
      const mark = text[part.lastIndex - 1] as string
      if (!isInText) {
        next = after(mark)
        if (next === undefined) return undefined
        isInText = mark === '"'
      } else if (text[at] === '"') isInText = false
      at = part.lastIndex
    }
  }

  /** The decoder drops a byte order mark at the beginning. Undefined if it is not UTF-8. */
  function decoded(piece?: Uint8Array): string | undefined {
    try {
      return decoder.decode(piece, { stream: piece !== undefined })
    } catch {
      return undefined
    }
  }

  return {
    /** Takes the next bytes; false if this cannot become such a document. */
    add(piece: Uint8Array): boolean {
      const text = next === undefined ? undefined : decoded(piece)
      const rest = text === undefined ? undefined : scan(begun + text)
      begun = rest ?? ''
      if (rest === undefined) next = undefined
      return next !== undefined
    },
    /** True if everything so far is such a document. */
    end: (): boolean => next === 'nothing' && begun === '' && decoded() === '',
  }
}

export interface JsonDetector {
  /** Undefined if not yet known. */
  known(cid: CID): boolean | undefined
  learn(cid: CID, isJson: boolean): void
  /** Scans the complete file piece by piece, yielding between slices, without keeping any of it. */
  judge(cid: CID, pieces: Pieces, reader: JudgingRequest): Promise<boolean>
}

export type Pieces = AsyncIterable<Uint8Array> | Iterable<Uint8Array>
type JudgingRequest = { readonly session: Pick<Session, 'yieldIfDue'>; readonly signal: AbortSignal }

const maxRemembered = 100_000
// A few milliseconds of work.
const sliceBytes = 64 * 1024

export function createJsonDetector(): JsonDetector {
  const verdicts = new LRUCache<string, boolean>(upTo(maxRemembered))
  const running = new Map<string, Promise<void>>()

  async function judgeAlone(key: string, pieces: Pieces, { session, signal }: JudgingRequest): Promise<boolean> {
    const over = Promise.withResolvers<void>()
    running.set(key, over.promise)
    try {
      const found = await judgeInPieces(pieces, session, signal)
      verdicts.set(key, found)
      return found
    } finally {
      running.delete(key)
      over.resolve()
    }
  }

  return {
    known: (cid) => verdicts.get(textOf(cid)),
    learn(cid, isJson) {
      verdicts.set(textOf(cid), isJson)
    },
    async judge(cid, pieces, reader) {
      const key = textOf(cid)
      // If the scanning request fails, the next waiting one takes over.
      for (let other = running.get(key); other !== undefined; other = running.get(key)) {
        await orAborted(reader.signal, other)
        const found = verdicts.get(key)
        if (found !== undefined) return found
      }
      return judgeAlone(key, pieces, reader)
    },
  }
}

async function judgeInPieces(
  pieces: Pieces,
  session: JudgingRequest['session'],
  signal: AbortSignal,
): Promise<boolean> {
  const judge = createJsonJudge()
  for await (const piece of pieces) {
    for (let at = 0; at < piece.byteLength; at += sliceBytes) {
      signal.throwIfAborted()
      if (!judge.add(piece.subarray(at, at + sliceBytes))) return false
      const due = session.yieldIfDue()
      if (due !== undefined) await due
    }
  }
  return judge.end()
}
