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

const isSpace = (byte: number): boolean => byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09
const [openBrace, openBracket] = [0x7b, 0x5b]
const mark: readonly number[] = [0xef, 0xbb, 0xbf]

/**
 * True if these first bytes could begin such a document; otherwise the rest of the file is not
 * read.
 */
export function mayBeJson(first: Uint8Array): boolean {
  let at = 0
  while (at < mark.length && first[at] === mark[at]) at++
  // The bytes may end within a byte order mark.
  const begins = at === mark.length || at === first.byteLength ? at : 0
  for (const byte of first.subarray(begins)) {
    if (isSpace(byte)) continue
    return byte === openBrace || byte === openBracket
  }
  return true // only white space so far
}

interface JsonJudge {
  /** Takes the next bytes; false if this cannot become such a document. */
  add(piece: Uint8Array): boolean
  /** True if everything so far is such a document. */
  end(): boolean
}

// States: what may come next.
const beginning = 0
const value = 1
const valueOrEnd = 2
const key = 3
const keyOrEnd = 4
const colon = 5
const commaOrEnd = 6
const onlySpace = 7
const inString = 8
const escaped = 9
const hexDigit = 10
const continuation = 11
const literal = 12
const minus = 13
const zero = 14
const integer = 15
const point = 16
const fraction = 17
const exponent = 18
const exponentSign = 19
const exponentDigits = 20
const markSecond = 21
const markThird = 22
const behindMark = 23
const stringEnd = 24
const wrong = 25

const literals: Readonly<Record<number, string>> = { 116: 'rue', 102: 'alse', 110: 'ull' }
const escapes: ReadonlySet<number> = new Set(Buffer.from('"\\/bfnrt'))

const isDigit = (byte: number): boolean => byte >= 0x30 && byte <= 0x39
const isHex = (byte: number): boolean => isDigit(byte) || ((byte | 0x20) >= 0x61 && (byte | 0x20) <= 0x66)

/**
 * For the first byte of a character: the number of bytes that follow, and the range of the next;
 * none if it is not UTF-8.
 */
function characterOf(first: number): readonly [count: number, min: number, max: number] {
  if (first >= 0xc2 && first <= 0xdf) return [1, 0x80, 0xbf]
  if (first === 0xe0) return [2, 0xa0, 0xbf]
  if (first === 0xed) return [2, 0x80, 0x9f] // no surrogates
  if (first >= 0xe1 && first <= 0xef) return [2, 0x80, 0xbf]
  if (first === 0xf0) return [3, 0x90, 0xbf]
  if (first >= 0xf1 && first <= 0xf3) return [3, 0x80, 0xbf]
  if (first === 0xf4) return [3, 0x80, 0x8f]
  return [0, 0, 0]
}

/** The open objects and arrays, one bit each: there may be as many as bytes. */
class Nesting {
  depth = 0
  /** True if the innermost container is an object. */
  isInObject = false
  #bits = new Uint8Array(16)

  open(isObject: boolean): void {
    const at = this.depth++
    if (at >> 3 >= this.#bits.length) {
      const larger = new Uint8Array(this.#bits.length * 2)
      larger.set(this.#bits)
      this.#bits = larger
    }
    const bit = 1 << (at & 7)
    const byte = this.#bits[at >> 3] as number
    this.#bits[at >> 3] = isObject ? byte | bit : byte & ~bit
    this.isInObject = isObject
  }

  close(): void {
    const at = --this.depth - 1
    this.isInObject = at >= 0 && ((this.#bits[at >> 3] as number) & (1 << (at & 7))) !== 0
  }
}

/** Undefined if the number ended before this byte. */
function nextOfNumber(state: number, byte: number): number | undefined {
  switch (state) {
    case minus:
      return byte === 0x30 ? zero : isDigit(byte) ? integer : wrong
    case point:
      return isDigit(byte) ? fraction : wrong
    case exponent:
      if (byte === 0x2b || byte === 0x2d) return exponentSign
      return isDigit(byte) ? exponentDigits : wrong
    case exponentSign:
      return isDigit(byte) ? exponentDigits : wrong
  }
  if (isDigit(byte) && state !== zero) return state
  if (byte === 0x2e && (state === zero || state === integer)) return point
  return (byte | 0x20) === 0x65 && state !== exponentDigits ? exponent : undefined
}

/** The next state within a string, or `stringEnd`. */
function createTextReader(): (state: number, byte: number) => number {
  /** The remaining digits of an escape or bytes of a character, and the range of the next byte. */
  let remaining = 0
  let min = 0
  let max = 0

  function plain(byte: number): number {
    if (byte === 0x22) return stringEnd
    if (byte === 0x5c) return escaped
    if (byte < 0x20) return wrong
    if (byte < 0x80) return inString
    ;[remaining, min, max] = characterOf(byte)
    return remaining === 0 ? wrong : continuation
  }

  return (state, byte) => {
    switch (state) {
      case inString:
        return plain(byte)
      case escaped:
        remaining = 4
        if (byte === 0x75) return hexDigit
        return escapes.has(byte) ? inString : wrong
      case hexDigit:
        if (!isHex(byte)) return wrong
        return --remaining === 0 ? inString : hexDigit
      default:
        if (byte < min || byte > max) return wrong
        min = 0x80
        max = 0xbf
        return --remaining === 0 ? inString : continuation
    }
  }
}

export function createJsonJudge(): JsonJudge {
  const nesting = new Nesting()
  let state = beginning
  let isKey = false
  const text = createTextReader()
  /** The remaining letters of a literal. */
  let letters = ''

  const afterValue = (): number => (nesting.depth === 0 ? onlySpace : commaOrEnd)

  function beginValue(byte: number): number {
    if (byte === 0x22) {
      isKey = false
      return inString
    }
    if (byte === openBrace || byte === openBracket) {
      nesting.open(byte === openBrace)
      return byte === openBrace ? keyOrEnd : valueOrEnd
    }
    if (byte === 0x2d) return minus
    if (byte === 0x30) return zero
    if (isDigit(byte)) return integer
    letters = literals[byte] ?? ''
    return letters === '' ? wrong : literal
  }

  function close(isObject: boolean): number {
    if (nesting.depth === 0 || nesting.isInObject !== isObject) return wrong
    nesting.close()
    return afterValue()
  }

  /** After a value, or after the last digit of a number. */
  function afterNumber(byte: number): number {
    if (isSpace(byte)) return afterValue()
    if (nesting.depth === 0) return wrong
    if (byte === 0x2c) return nesting.isInObject ? key : value
    if (byte === 0x7d) return close(true)
    return byte === 0x5d ? close(false) : wrong
  }

  function atBeginning(byte: number): number {
    if (isSpace(byte)) return behindMark
    if (state === beginning && byte === mark[0]) return markSecond
    return byte === openBrace || byte === openBracket ? beginValue(byte) : wrong
  }

  function nextOfLiteral(byte: number): number {
    if (byte !== letters.charCodeAt(0)) return wrong
    letters = letters.slice(1)
    return letters === '' ? afterValue() : literal
  }

  function next(byte: number): number {
    switch (state) {
      case inString:
      case escaped:
      case hexDigit:
      case continuation: {
        const after = text(state, byte)
        return after === stringEnd ? (isKey ? colon : afterValue()) : after
      }
      case beginning:
      case behindMark:
        return atBeginning(byte)
      case markSecond:
        return byte === mark[1] ? markThird : wrong
      case markThird:
        return byte === mark[2] ? behindMark : wrong
      case value:
        return isSpace(byte) ? value : beginValue(byte)
      case valueOrEnd:
        if (isSpace(byte)) return valueOrEnd
        return byte === 0x5d ? close(false) : beginValue(byte)
      case key:
        if (isSpace(byte)) return key
        isKey = true
        return byte === 0x22 ? inString : wrong
      case keyOrEnd:
        if (isSpace(byte)) return keyOrEnd
        if (byte === 0x7d) return close(true)
        isKey = true
        return byte === 0x22 ? inString : wrong
      case colon:
        if (isSpace(byte)) return colon
        return byte === 0x3a ? value : wrong
      case commaOrEnd:
      case onlySpace:
        return afterNumber(byte)
      case literal:
        return nextOfLiteral(byte)
      default:
        return nextOfNumber(state, byte) ?? afterNumber(byte)
    }
  }

  return {
    add(piece) {
      const { length } = piece
      for (let at = 0; at < length && state !== wrong; at++) {
        const byte = piece[at] as number
        // Fast path: most bytes are plain characters within strings.
        if (state !== inString || byte < 0x20 || byte > 0x7f || byte === 0x22 || byte === 0x5c) state = next(byte)
      }
      return state !== wrong
    },
    end: () => state === onlySpace,
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
