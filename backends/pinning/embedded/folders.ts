// Where this data folder's pins lie. A configuration that names another place, or another provider, leaves them where they
// are: they are found again as long as they hold anything. A folder that was named by the operator is noted in the data
// folder before the first pin in it counts.
import { appendFile, readFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { namesIn, orIfGone } from '../../../src/core/disk/files.ts'
import type { Disk } from './disk.ts'

const listIn = (data: string): string => join(data, 'pins.folders')

export const usualFolder = (data: string): string => join(data, 'pins')

export const blocksIn = (root: string): string => join(root, 'blocks')

/** Once for each folder; lasting when it resolves. */
export async function note(root: string, data: string, disk: Disk): Promise<void> {
  if (root === usualFolder(data) || (await noted(data)).includes(root)) return
  await disk.folder(data)
  await appendFile(listIn(data), `${JSON.stringify(root)}\n`, { flush: true })
  await disk.sync(data)
}

/** Those that hold anything, but for `known`. */
export async function foldersLeft(data: string, known: readonly string[]): Promise<string[]> {
  const others = [usualFolder(data), ...(await noted(data))].filter((root) => !known.includes(root))
  const left = await Promise.all([...new Set(others)].map(async (root) => ((await holdsAnything(root)) ? [root] : [])))
  return left.flat()
}

async function noted(data: string): Promise<string[]> {
  const text = await orIfGone(readFile(listIn(data), 'utf8'), '')
  return text.split('\n').flatMap((line) => {
    const root = parse(line)
    return root === undefined ? [] : [resolve(root)]
  })
}

function parse(line: string): string | undefined {
  try {
    const root: unknown = JSON.parse(line)
    return typeof root === 'string' && root !== '' ? root : undefined
  } catch {
    return undefined
  }
}

/** A block is what makes it worth reading: folders alone are not. */
async function holdsAnything(root: string): Promise<boolean> {
  for await (const shard of namesIn(blocksIn(root)))
    for await (const _ of namesIn(join(blocksIn(root), shard))) return true
  return false
}
