// A document that is to be looked at before it is kept: its bytes are held while they stream by, up to a limit.
import { Failure } from '../../core/failure.ts'
import { malformed } from '../failures.ts'

export type TextCheck = {
  readonly maxBytes: number
  /** Throws a Failure that names what is wrong. */
  readonly check: (text: string) => void
}

export function keepText({ maxBytes, check }: TextCheck) {
  const pieces: Buffer[] = []
  let bytes = 0
  return {
    async *over(source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
      for await (const piece of source) {
        bytes += piece.byteLength
        if (bytes > maxBytes) throw tooLong(maxBytes)
        pieces.push(Buffer.from(piece))
        yield piece
      }
    },
    check(): void {
      check(textOf(Buffer.concat(pieces)))
    },
  }
}

const tooLong = (maxBytes: number): Failure =>
  new Failure('too-large', `a document that is checked may have ${maxBytes} bytes, and this one has more`, {
    source: 'client',
  })

/** Every byte of it: what is checked is what will be read back, a byte order mark included. */
function textOf(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes)
  } catch (error) {
    throw malformed('the document is not UTF-8', error)
  }
}
