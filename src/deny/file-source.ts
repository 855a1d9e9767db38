// A denylist in a file, reloaded when its size or modification time changes.
import { readFile, stat } from 'node:fs/promises'
import { basename } from 'node:path'
import { type DenylistSource, mostBytes } from './source.ts'

const everyMs = 2_000

export function fromFile(path: string): DenylistSource {
  let seen = ''
  const look = async (): Promise<{ size: number; state: string }> => {
    const { size, mtimeMs } = await stat(path)
    return { size, state: `${size} ${mtimeMs}` }
  }
  return {
    name: basename(path),
    where: path,
    everyMs,
    isEmptyOdd: false,
    async read(_signal, anew = false) {
      const { size, state } = await look()
      if (state === seen && !anew) return undefined
      if (size > mostBytes) throw new Error(`it is larger than ${mostBytes} bytes`)
      const text = await readFile(path, 'utf8')
      // Remember the state even of a rejected list, so that it is parsed again only after it
      // changes or on demand.
      seen = state
      return { text, async taken() {} }
    },
    lastCopy: async () => undefined,
  }
}
