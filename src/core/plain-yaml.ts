// Converts a YAML document to plain values. A key that is a list or a mapping is refused: the
// parser would stringify it again at each level, so a kilobyte of such keys would take minutes.
import { type Document, isScalar, visit } from 'yaml'

export function plainValues(document: Document): unknown {
  visit(document, {
    Pair(_at, { key }) {
      if (!isScalar(key)) throw new Error('a key is no text')
    },
  })
  return document.toJS()
}
