// A YAML document as plain values. A key that is a list or a mapping would be made a text, again at each level of it: a kilobyte of them
// would hold up the process for minutes.
import { type Document, isScalar, visit } from 'yaml'

/** Throws where it is not plain. */
export function plainValues(document: Document): unknown {
  visit(document, {
    Pair(_at, { key }) {
      if (!isScalar(key)) throw new Error('a key is no text')
    },
  })
  return document.toJS()
}
