// The words that every part of the description is made of.

export type Json = Readonly<Record<string, unknown>>

export const ref = (kind: string, name: string): Json => ({ $ref: `#/components/${kind}/${name}` })
export const text = (description: string): Json => ({ description, schema: { type: 'string' } })
/** Each answer has an id besides. */
export const headersOf = (names: readonly string[]): Json =>
  Object.fromEntries([...names, 'X-Request-Id'].map((name) => [name, ref('headers', name)]))

/** For examples: `hello world`, as a file of its own. */
export const aCid = 'bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4'
export const aName = 'k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r'
