// Keeps the text of an upload, up to a limit, while it streams by, so that it can be checked before it is accepted.
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
  new Failure('too-large', `the document is larger than the ${maxBytes} bytes that can be checked against a schema`, {
    source: 'client',
  })

/** Decodes every byte, a byte order mark too: readers will get exactly the text that was checked. */
function textOf(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes)
  } catch (error) {
    throw malformed('the document is not UTF-8', error)
  }
}
