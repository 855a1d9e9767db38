// One `POST /add`, for the commands that upload.
import { openAsBlob } from 'node:fs'
import { stat } from 'node:fs/promises'
import { FormData } from 'undici'
import { type Connection, problemOf, wordsOf } from './connection.ts'
import type { ProgressLine } from './progress.ts'

export type FileToSend = { readonly name: string; readonly content: Blob }

export type UploadRequest = {
  /** What the user called it: errors begin with it. */
  readonly name: string
  readonly files: readonly FileToSend[]
  readonly token: string | undefined
  readonly as: '' | 'wrap=true' | 'format=car'
  readonly progress: ProgressLine
}

/** What cannot be opened is named with the reason, which `openAsBlob` keeps to itself. */
export async function opened(file: string): Promise<Blob> {
  if (!(await stat(file)).isFile()) throw new Error(`${file} is no file`)
  return openAsBlob(file).catch((cause: unknown) => {
    throw new Error(`${file} cannot be read; look at its rights`, { cause })
  })
}

/** The paths that the gateway answers, in its order; at least one. */
export async function upload(
  connection: Connection,
  { name, files, token, as, progress }: UploadRequest,
): Promise<string[]> {
  const body = new FormData()
  progress.of(files.reduce((bytes, { content }) => bytes + content.size, 0))
  for (const { name, content } of files) body.append('data', counted(content, name, progress))
  const headers = token ? { authorization: `Bearer ${token}` } : {}
  const answer = await connection.ask(as === '' ? '/add' : `/add?${as}`, { method: 'POST', headers, body })
  if (answer.statusCode !== 200) throw new Error(`${name}: ${wordsOf(answer.statusCode, await problemOf(answer))}`)
  const { cids = [] } = (await answer.body.json()) as { cids?: string[] }
  if (cids.length === 0) throw new Error(`${name}: the gateway answered no path`)
  return cids
}

/** A form keeps a `File` as it is, and reads its stream once, while it is sent. */
function counted(content: Blob, name: string, progress: ProgressLine): File {
  const file = new File([content], name, { type: content.type })
  const stream = (): ReadableStream => ReadableStream.from(progress.counting(content.stream()))
  return Object.defineProperty(file, 'stream', { value: stream })
}
