// `cidgate add`: files, folders and the standard input to `POST /add` of a running gateway.
import { openAsBlob } from 'node:fs'
import { readdir, stat } from 'node:fs/promises'
import { basename, join, relative, resolve, sep } from 'node:path'
import { blob } from 'node:stream/consumers'
import { FormData } from 'undici'
import type { Given } from '../command.ts'
import { type Connection, connect, problemOf, wordsOf } from './connection.ts'
import { createProgress } from './progress.ts'

type Added = { readonly name: string; readonly path: string }

export async function addCommand(given: Given): Promise<number> {
  const { values, positionals, io } = given
  const connection = connect(given)
  const progress = createProgress(io.stderr)
  const send = async (name: string, files: readonly Part[], isFolder: boolean): Promise<void> => {
    const { path } = await upload(connection, { name, files, isFolder, token: io.environment['CIDGATE_TOKEN'] })
    progress.end()
    io.stdout.write(values['json'] ? `${JSON.stringify({ name, path })}\n` : `${path}  ${name}\n`)
  }
  try {
    for (const name of positionals) {
      progress.say(`${name} is on its way`)
      if (name === '-') await send('-', [{ name: 'stdin', content: await blob(io.stdin) }], false)
      else if ((await stat(name)).isDirectory())
        await send(name, await filesBelow(name, values['hidden'] === true), true)
      else await send(name, [{ name: basename(name), content: await openAsBlob(name) }], false)
    }
    return 0
  } finally {
    progress.end()
    await connection.close()
  }
}

type Part = { readonly name: string; readonly content: Blob }

/** Files are read while they are sent, not before. */
async function filesBelow(folder: string, withHidden: boolean): Promise<Part[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  const parts: Part[] = []
  for (const entry of entries) {
    const file = join(entry.parentPath, entry.name)
    const name = relative(resolve(folder), resolve(file)).split(sep).join('/')
    if (!withHidden && name.split('/').some((one) => one.startsWith('.'))) continue
    if (/["\r\n]/.test(name)) throw new Error(`${file}: a name with a quote or a line break cannot be sent as it is`)
    if (entry.isFile()) parts.push({ name, content: await openAsBlob(file) })
    else if (!entry.isDirectory()) throw new Error(`${file} is neither a file nor a folder; links are not followed`)
  }
  if (parts.length === 0) throw new Error(`${folder} has no file in it`)
  return parts.sort((a, b) => (a.name < b.name ? -1 : 1))
}

async function upload(
  connection: Connection,
  {
    name,
    files,
    isFolder,
    token,
  }: { name: string; files: readonly Part[]; isFolder: boolean; token: string | undefined },
): Promise<Added> {
  const body = new FormData()
  for (const one of files) body.append('data', one.content, one.name)
  const headers = token ? { authorization: `Bearer ${token}` } : {}
  const answer = await connection.ask(isFolder ? '/add?wrap=true' : '/add', { method: 'POST', headers, body })
  if (answer.statusCode !== 200) throw new Error(`${name}: ${wordsOf(answer.statusCode, await problemOf(answer))}`)
  const { cids = [] } = (await answer.body.json()) as { cids?: readonly string[] }
  const path = cids.at(-1)
  if (path === undefined || cids.length !== files.length + (isFolder ? 1 : 0))
    throw new Error(
      `${name}: the gateway answered ${cids.length} paths${isFolder ? '; it may be too old for folders' : ''}`,
    )
  return { name, path }
}
