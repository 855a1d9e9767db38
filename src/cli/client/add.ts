// `cidgate add`: sends files, folders or standard input to `POST /add` of a running gateway.
import { readdir, stat } from 'node:fs/promises'
import { basename, join, posix, relative, resolve, sep } from 'node:path'
import type { Given } from '../command.ts'
import { connect } from './connection.ts'
import { createProgress } from './progress.ts'
import { type FileToSend, opened, type StreamToSend, upload } from './upload.ts'

export async function addCommand(given: Given): Promise<number> {
  const { values, positionals, io } = given
  const connection = connect(given)
  const progress = createProgress(io.stderr)
  const pinName = typeof values['name'] === 'string' ? values['name'] : undefined
  const send = async (name: string, files: readonly FileToSend[] | StreamToSend, isFolder: boolean): Promise<void> => {
    const paths = await upload(connection, {
      name,
      files,
      token: io.environment['CIDGATE_TOKEN'],
      as: isFolder ? 'wrap=true' : '',
      ...(pinName !== undefined && { pinName }),
      progress,
    })
    const sent = 'stream' in files ? 1 : files.filter(({ content }) => content.type !== folderType).length
    const expected = sent + (isFolder ? 1 : 0)
    if (paths.length !== expected)
      throw new Error(
        `${name}: the gateway answered ${paths.length} paths${isFolder ? '; it may be too old for folders' : ''}`,
      )
    const path = paths.at(-1)
    progress.end()
    io.stdout.write(values['json'] ? `${JSON.stringify({ name, path })}\n` : `${path}  ${name}\n`)
    if (!isFolder && name.endsWith('.car'))
      io.stderr.write(`cidgate: ${name} was added as the file that it is; cidgate import takes what is in it\n`)
  }
  try {
    for (const name of positionals) {
      progress.say(`${name} is on its way`)
      if (name === '-') await send('-', { name: 'stdin', stream: io.stdin }, false)
      else if (!(await stat(name)).isFile()) await send(name, await filesBelow(name, values['hidden'] === true), true)
      else await send(name, [{ name: basename(name), content: await opened(name) }], false)
    }
    return 0
  } finally {
    progress.end()
    // The gateway may have refused it early, and the process would wait for the rest of the input.
    if (positionals.includes('-')) io.stdin.destroy()
    await connection.close()
  }
}

const folderType = 'application/x-directory'

/**
 * Lists the files below a folder; each is read only while it is sent. A folder gets an entry only
 * if no file's path contains it.
 */
async function filesBelow(folder: string, withHidden: boolean): Promise<FileToSend[]> {
  if (!(await stat(folder)).isDirectory())
    throw new Error(`${folder} is neither a file nor a folder; - stands for the standard input`)
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  const parts: FileToSend[] = []
  const folders: string[] = []
  for (const entry of entries) {
    const file = join(entry.parentPath, entry.name)
    const name = relative(resolve(folder), resolve(file)).split(sep).join('/')
    if (!withHidden && name.split('/').some((one) => one.startsWith('.'))) continue
    if (/["\r\n]/.test(name)) throw new Error(`${file}: a name with a quote or a line break cannot be sent as it is`)
    if (entry.isFile()) parts.push({ name, content: await opened(file) })
    else if (entry.isDirectory()) folders.push(name)
    else throw new Error(`${file} is neither a file nor a folder; links are not followed`)
  }
  const named = new Set([...parts.map(({ name }) => name), ...folders].map((name) => posix.dirname(name)))
  for (const name of folders) if (!named.has(name)) parts.push({ name, content: new Blob([], { type: folderType }) })
  if (parts.length === 0) throw new Error(`${folder} has nothing in it`)
  return parts.sort((a, b) => (a.name < b.name ? -1 : 1))
}
