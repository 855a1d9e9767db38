// Building blocks of the description.

export type Json = Readonly<Record<string, unknown>>

export const ref = (kind: string, name: string): Json => ({ $ref: `#/components/${kind}/${name}` })
export const text = (description: string): Json => ({ description, schema: { type: 'string' } })
/** Every response also has an id. */
export const headersOf = (names: readonly string[]): Json =>
  Object.fromEntries([...names, 'X-Request-Id'].map((name) => [name, ref('headers', name)]))

/** For examples: the CID of a file with `hello world`. */
export const aCid = 'bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4'
export const aName = 'k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r'
