// The relative file names of a directory upload: checked, and put together as a tree. A name that could lead out of the
// directory, or that two parts claim, is refused before its bytes are read.
import { malformed } from '../failures.ts'
import type { Entry } from './nodes.ts'

/** Files of one upload, and directories. Each costs a small file on the disk. */
export const mostEntries = 16_384
const mostDepth = 64
const mostPathBytes = 4096
/** What file systems take: a directory that was uploaded can be saved again. */
const mostNameBytes = 255

export type Folder = { readonly path: string; readonly entries: Map<string, Folder | FileInTree> }
/** Its entry is set once its bytes have become blocks. */
export type FileInTree = { entry: Omit<Entry, 'name'> | undefined }

export interface Tree {
  readonly root: Folder
  /** Reserves the path of a file. Throws a Failure for a path that cannot be taken. */
  file(path: string): FileInTree
  /** A directory of its own, which may stay empty. */
  folder(path: string): void
}

/** What stands alone in a tree; undefined where there is more. */
export function onlyEntry({ entries }: Folder): Folder | FileInTree | undefined {
  const [first, ...more] = entries.values()
  return more.length === 0 ? first : undefined
}

export function createTree(): Tree {
  const root: Folder = { path: '', entries: new Map() }
  let count = 0

  function add<Node extends Folder | FileInTree>(to: Folder, name: string, node: Node): Node {
    if (++count > mostEntries) throw malformed(`more than ${mostEntries} files and directories in one upload`)
    to.entries.set(name, node)
    return node
  }

  function enter(names: readonly string[], path: string): Folder {
    let folder = root
    for (const name of names) {
      const below = folder.path === '' ? name : `${folder.path}/${name}`
      const next = folder.entries.get(name) ?? add(folder, name, { path: below, entries: new Map() })
      if (!('entries' in next)) throw refused(path, `${JSON.stringify(below)} is a file in the same upload`)
      folder = next
    }
    return folder
  }

  return {
    root,
    file(path) {
      const names = namesIn(path)
      const name = names.pop() as string
      const folder = enter(names, path)
      if (folder.entries.has(name)) throw refused(path, 'another part of the upload has the same path')
      return add(folder, name, { entry: undefined })
    },
    folder: (path) => void enter(namesIn(path), path),
  }
}

/** The names in a relative path. `find .` and some clients begin it with `./`. */
function namesIn(path: string): string[] {
  if (Buffer.byteLength(path) > mostPathBytes) throw refused(path, `it is longer than ${mostPathBytes} bytes`)
  const names = path.replace(/^\.\//, '').split('/')
  if (names.length > mostDepth) throw refused(path, `it is more than ${mostDepth} levels deep`)
  for (const name of names) {
    if (name === '') throw refused(path, 'it is not relative, or has an empty name in it')
    if (name === '.' || name === '..') throw refused(path, `it has ${name} in it`)
    if (hasControls(name)) throw refused(path, 'it has a control character in it')
    if (name.includes('\\')) throw refused(path, 'it has a backslash in it; directories are parted by /')
    if (Buffer.byteLength(name) > mostNameBytes)
      throw refused(path, `a name in it has more than ${mostNameBytes} bytes`)
  }
  return names
}

const hasControls = (name: string): boolean => [...name].some((one) => one < ' ' || one === '\u007f')

const mostShown = 200

const refused = (path: string, why: string) =>
  malformed(`the path ${JSON.stringify(path.slice(0, mostShown))} cannot be in a directory: ${why}`)
