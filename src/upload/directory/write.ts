// Writes the directories of a tree as blocks, those below first: a link needs the CID of what it leads to.
import { type DirectoryNode, putDirectory, type Rules } from './nodes.ts'
import type { Folder } from './paths.ts'

export type WrittenFolder = DirectoryNode & { readonly path: string }

const writesAtOnce = 8

/** Every directory of the tree, the root last. Each file of it has its entry. */
export async function putTree(root: Folder, rules: Rules): Promise<WrittenFolder[]> {
  const writing = new Set<Promise<unknown>>()
  const failed = new AbortController()
  /** A node is on its way to the disk while the next is made. */
  const put: Rules['put'] = async (cid, bytes) => {
    failed.signal.throwIfAborted()
    const one = rules
      .put(cid, bytes)
      .catch((error: unknown) => failed.abort(error))
      .finally(() => writing.delete(one))
    writing.add(one)
    if (writing.size >= writesAtOnce) await Promise.race(writing)
  }
  const written: WrittenFolder[] = []
  async function putFolder({ path, entries }: Folder): Promise<DirectoryNode> {
    const links = []
    for (const [name, below] of entries) {
      const node = 'entries' in below ? await putFolder(below) : below.entry
      if (!node) throw new Error(`${path}/${name} has no blocks`)
      links.push({ ...node, name })
    }
    const node = await putDirectory(links, { ...rules, put })
    written.push({ ...node, path })
    return node
  }
  try {
    await putFolder(root)
  } finally {
    await Promise.all(writing)
  }
  failed.signal.throwIfAborted()
  return written
}
