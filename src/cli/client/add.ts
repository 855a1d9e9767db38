// `cidgate add` and `cidgate import`: send files, folders, CARs or standard input to `POST /add` of a
// running gateway.
import { randomUUID } from 'node:crypto'
import { openAsBlob } from 'node:fs'
import { readdir, stat } from 'node:fs/promises'
import { basename, join, posix, relative, resolve, sep } from 'node:path'
import { Readable } from 'node:stream'
import { FormData } from 'undici'
import type { Given } from '../command.ts'
import { type Asking, type Connection, connected, type ProgressLine, refusal } from './connection.ts'

export function addCommand(given: Given): Promise<number> {
  const { values, positionals, io } = given
  const name = typeof values['name'] === 'string' ? { name: values['name'] } : {}
  const work = connected(given, 'listen', async (gateway) => {
    const send = async (typed: string, files: readonly FileToSend[] | StreamToSend, isFolder: boolean) => {
      const paths = await upload(gateway, given, {
        typed,
        files,
        query: { ...(isFolder && { wrap: 'true' }), ...name },
      })
      const sent = 'stream' in files ? 1 : files.filter(({ content }) => content.type !== folderType).length
      if (paths.length !== sent + (isFolder ? 1 : 0))
        throw new Error(
          `${typed}: the gateway answered ${paths.length} paths${isFolder ? '; it may be too old for folders' : ''}`,
        )
      const path = paths.at(-1)
      gateway.print({ name: typed, path }, `${path}  ${typed}`)
      if (!isFolder && typed.endsWith('.car'))
        io.stderr.write(`cidgate: ${typed} was added as the file that it is; cidgate import takes what is in it\n`)
    }
    for (const one of positionals) {
      gateway.progress.say(`${one} is being sent`)
      if (one === '-') await send('-', { name: 'stdin', stream: io.stdin }, false)
      else if (!(await stat(one)).isFile()) await send(one, await filesBelow(one, values['hidden'] === true), true)
      else await send(one, [{ name: basename(one), content: await opened(one) }], false)
    }
    return 0
  })
  // The gateway may have refused it early, and the process would wait for the rest of the input.
  return work.finally(() => positionals.includes('-') && io.stdin.destroy())
}

/** Uploads CARs and keeps their CIDs. */
export const importCommand = (given: Given): Promise<number> =>
  connected(given, 'listen', async (gateway) => {
    for (const name of given.positionals) {
      gateway.progress.say(`${name} is being sent`)
      const files = [{ name: basename(name), content: await opened(name) }]
      for (const path of await upload(gateway, given, { typed: name, files, query: { format: 'car' } }))
        gateway.print({ name, path }, `${path}  ${name}`)
    }
    return 0
  })

const folderType = 'application/x-directory'

/**
 * Lists the files below a folder; each is read only while it is sent. A folder gets an entry only
 * if no file's path contains it.
 */
async function filesBelow(folder: string, withHidden: boolean): Promise<FileToSend[]> {
  if (!(await stat(folder)).isDirectory())
    throw new Error(`${folder} is neither a file nor a folder; - means standard input`)
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

type FileToSend = { readonly name: string; readonly content: Blob }
/** Content of unknown size. */
type StreamToSend = { readonly name: string; readonly stream: AsyncIterable<Uint8Array> }

type UploadRequest = {
  /** The name that the user typed, for error messages. */
  readonly typed: string
  readonly files: readonly FileToSend[] | StreamToSend
  readonly query: Readonly<Record<string, string>>
}

/** Opens a file; unlike `openAsBlob`, reports why it cannot be opened. */
async function opened(file: string): Promise<Blob> {
  if (!(await stat(file)).isFile()) throw new Error(`${file} is no file`)
  return openAsBlob(file).catch((cause: unknown) => {
    throw new Error(`${file} cannot be read; check its permissions`, { cause })
  })
}

/** Returns the paths from the response, in order; at least one. */
async function upload(
  { ask, progress }: Connection,
  { io }: Given,
  { typed, files, query }: UploadRequest,
): Promise<string[]> {
  const { body, headers } = 'stream' in files ? streamed(files, progress) : formOf(files, progress)
  const token = io.environment['CIDGATE_TOKEN']
  const answer = await ask(`/add?${new URLSearchParams(query)}`, {
    method: 'POST',
    headers: { ...headers, ...(token && { authorization: `Bearer ${token}` }) },
    body,
  })
  if (answer.statusCode !== 200) throw new Error(`${typed}: ${await refusal(answer)}`)
  const { cids = [] } = (await answer.body.json()) as { cids?: string[] }
  if (cids.length === 0) throw new Error(`${typed}: the gateway answered no path`)
  return cids
}

/** FormData keeps a `File` as it is, and reads its stream once, while it is sent. */
function counted(content: Blob, name: string, progress: ProgressLine): File {
  const file = new File([content], name, { type: content.type })
  const stream = (): ReadableStream => ReadableStream.from(progress.counting(content.stream()))
  return Object.defineProperty(file, 'stream', { value: stream })
}

type Sent = { readonly body: NonNullable<Asking['body']>; readonly headers?: Record<string, string> }

function formOf(files: readonly FileToSend[], progress: ProgressLine): Sent {
  const body = new FormData()
  progress.of(files.reduce((bytes, { content }) => bytes + content.size, 0))
  for (const { name, content } of files) body.append('data', counted(content, name, progress))
  return { body }
}

/**
 * Builds the multipart body by hand, because undici's FormData needs the size, and so the complete
 * content.
 */
function streamed({ name, stream }: StreamToSend, progress: ProgressLine): Sent {
  const boundary = `cidgate-${randomUUID()}`
  progress.of(undefined)
  async function* parts(): AsyncGenerator<Uint8Array | string> {
    yield `--${boundary}\r\nContent-Disposition: form-data; name="data"; filename="${name}"\r\nContent-Type: application/octet-stream\r\n\r\n`
    yield* progress.counting(stream)
    yield `\r\n--${boundary}--\r\n`
  }
  return {
    body: Readable.from(parts(), { objectMode: false }),
    headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
  }
}
