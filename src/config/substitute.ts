// Substitutes `${NAME}` from the environment and `${file:/run/secrets/x}` from a file in string
// values. Runs after the YAML was parsed, so that a secret's content can never become a key. `$${`
// stands for a literal `${`.
import { closeSync, openSync, readSync } from 'node:fs'
import { codeOf } from '../core/disk/files.ts'
import type { Path } from './complaints.ts'

export type Environment = Readonly<Record<string, string | undefined>>

const maxSecretBytes = 64 * 1024

export type Missing = { readonly path: Path; readonly what: string }

/**
 * Returns the tree with everything substituted. A missing value is replaced by a placeholder that
 * is valid as a token or URL. Never shows a secret.
 */
export function substitute(tree: unknown, environment: Environment): { tree: unknown; missing: Missing[] } {
  const missing: Missing[] = []

  function substituteIn(value: unknown, path: Path): unknown {
    if (typeof value === 'string') return fill(value, path)
    if (Array.isArray(value)) return value.map((item, index) => substituteIn(item, [...path, index]))
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, substituteIn(item, [...path, key])]))
  }

  function fill(text: string, path: Path): string {
    return text.replace(/\$?\$\{([^}]*)\}/g, (placeholder, name: string) => {
      if (placeholder.startsWith('$$')) return placeholder.slice(1)
      const found = name.startsWith('file:') ? fromFile(name.slice('file:'.length)) : fromEnvironment(name, environment)
      if ('value' in found) return found.value
      missing.push({ path, what: found.missing })
      return placeholder === text ? `https://missing-${missing.length}.invalid` : `missing-${missing.length}`
    })
  }

  return { tree: substituteIn(tree, []), missing }
}

type Substituted = { readonly value: string } | { readonly missing: string }

function fromEnvironment(name: string, environment: Environment): Substituted {
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) {
    return { missing: `\${…} names nothing (expected \${NAME}, \${file:/path}, or $\${ for a plain \${)` }
  }
  const value = environment[name]
  if (value) return { value }
  return { missing: `the environment has ${value === '' ? 'an empty' : 'no'} ${name} (expected it to be set)` }
}

function fromFile(path: string): Substituted {
  try {
    const bytes = beginningOf(path)
    if (bytes.byteLength > maxSecretBytes)
      return { missing: `${path} is too large (expected a secret in a small file)` }
    const value = bytes.toString('utf8').replace(/\r?\n$/, '')
    return value === '' ? { missing: `${path} is empty (expected a secret in it)` } : { value }
  } catch (error) {
    return { missing: `${path} cannot be read: ${codeOf(error)} (expected a secret in it)` }
  }
}

/** Reads one byte more than the limit of a secret: a device is endless, and reports a size of 0. */
function beginningOf(path: string): Buffer {
  const bytes = Buffer.alloc(maxSecretBytes + 1)
  const file = openSync(path, 'r')
  try {
    let at = 0
    for (let read = 1; read > 0 && at < bytes.byteLength; at += read)
      read = readSync(file, bytes, at, bytes.byteLength - at, null)
    return bytes.subarray(0, at)
  } finally {
    closeSync(file)
  }
}
