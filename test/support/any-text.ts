// Text of any characters for property tests. fast-check's own units `binary` and `grapheme` make a table of all of Unicode at
// the first use in each process, which takes a second.
import fc from 'fast-check'

const surrogates = { first: 0xd800, count: 0x800 }

/** One character, from all that can be written in UTF-8; half of them are ASCII. */
const characters = fc
  .oneof(fc.nat(0x7f), fc.nat(0x7ff), fc.nat(0x10ffff - surrogates.count))
  .map((n) => String.fromCodePoint(n < surrogates.first ? n : n + surrogates.count))

export const anyText = (limits: { readonly maxLength?: number } = {}) => fc.string({ unit: characters, ...limits })
