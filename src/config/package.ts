// The location and version of this package, in a clone, a build or an installed package.
import { readFileSync } from 'node:fs'

const manifest = new URL(import.meta.resolve('cidgate/package.json'))

/** A file of the package by its path from the root. */
export const shipped = (path: string): URL => new URL(path, manifest)

type Manifest = { readonly version: string; readonly engines: { readonly node: string } }

const read = JSON.parse(readFileSync(manifest, 'utf8')) as Manifest

export const version: string = read.version

/** The required Node version. */
export const engine: string = read.engines.node
