// Bytes that were changed on their way or on a disk: every single change, and a few at random.
import fc from 'fast-check'

/** What is put in where a byte more is tried. */
const more = [0, 0xff]

/** Every bit flipped in turn, every byte taken out, some put in at each place, and every end cut off. */
export function* singleChanges(bytes: Uint8Array): Generator<Buffer<ArrayBuffer>> {
  for (let at = 0; at <= bytes.byteLength; at++) {
    const [before, rest] = [bytes.subarray(0, at), bytes.subarray(at + 1)]
    const own = bytes.subarray(at, at + 1)
    for (const byte of more) yield Buffer.concat([before, Buffer.of(byte), own, rest])
    if (at === bytes.byteLength) return
    for (let bit = 1; bit < 256; bit <<= 1) yield Buffer.concat([before, own.map((byte) => byte ^ bit), rest])
    yield Buffer.concat([before, rest])
    yield Buffer.concat([before])
  }
}

type Change = { readonly at: number; readonly to: number; readonly kind: string; readonly length: number }

/** Up to so many. `telling`: bytes that mean something there, which are put in more often than others. */
export const anyChanges = (most = 3, telling: Uint8Array = Buffer.of(0)): fc.Arbitrary<Change[]> =>
  fc.array(
    fc.record({
      at: fc.nat(),
      to: fc.oneof(fc.nat(255), fc.constantFrom(...telling)),
      kind: fc.constantFrom('set', 'cut', 'insert', 'twice', 'end'),
      length: fc.nat(12),
    }),
    { maxLength: most },
  )

export function changed(bytes: Uint8Array, { at: anywhere, to, kind, length }: Change): Uint8Array {
  const at = anywhere % (bytes.byteLength + 1)
  const [head, tail] = [bytes.subarray(0, at), bytes.subarray(at)]
  switch (kind) {
    case 'twice':
      return Buffer.concat([head, tail.subarray(0, length), tail])
    case 'end':
      return Uint8Array.from(head)
    default: {
      const rest = kind === 'insert' ? tail : tail.subarray(1)
      return Buffer.concat([head, kind === 'cut' ? Buffer.of() : Buffer.of(to), rest])
    }
  }
}
