// The location and version of this package, in a clone, a build or an installed package. The first
// import of the library: on an older Node the other modules fail with messages that do not name the
// cause.
import { readFileSync } from 'node:fs'

const manifest = new URL(import.meta.resolve('cidgate/package.json'))

/** A file of the package by its path from the root. */
export const shipped = (path: string): URL => new URL(path, manifest)

type Manifest = { readonly version: string; readonly engines: { readonly node: string } }

const { version, engines } = JSON.parse(readFileSync(manifest, 'utf8')) as Manifest

export { version }

const numbers = (text: string): number[] => text.match(/\d+/g)?.map(Number) ?? []
const [major = 0, minor = 0] = numbers(process.versions.node)
const [minMajor = 0, minMinor = 0] = numbers(engines.node)

if (major < minMajor || (major === minMajor && minor < minMinor))
  throw new Error(`cidgate: Node ${process.versions.node} is too old (expected ${minMajor}.${minMinor} or later)`)
