// Where this package lies and which version it is, the same for a clone, a compiled build and an installed package.
import { readFileSync } from 'node:fs'

const manifest = new URL(import.meta.resolve('cidgate/package.json'))

/** A file that is shipped with the package, by its path from the package's root. */
export const shipped = (path: string): URL => new URL(path, manifest)

type Manifest = { readonly version: string; readonly engines: { readonly node: string } }

const read = JSON.parse(readFileSync(manifest, 'utf8')) as Manifest

export const version: string = read.version

/** The Node that it needs. */
export const engine: string = read.engines.node
