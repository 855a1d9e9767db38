// `POST /add`, for the commands that upload.
import { randomUUID } from 'node:crypto'
import { openAsBlob } from 'node:fs'
import { stat } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { FormData } from 'undici'
import { type Asking, type Connection, problemOf, wordsOf } from './connection.ts'
import type { ProgressLine } from './progress.ts'

export type FileToSend = { readonly name: string; readonly content: Blob }
/** Content of unknown size. */
export type StreamToSend = { readonly name: string; readonly stream: AsyncIterable<Uint8Array> }

export type UploadRequest = {
  /** The name that the user typed, for error messages. */
  readonly name: string
  readonly files: readonly FileToSend[] | StreamToSend
  readonly token: string | undefined
  readonly as: '' | 'wrap=true' | 'format=car'
  /** The name of the pins. */
  readonly pinName?: string
  readonly progress: ProgressLine
}

/** Opens a file; unlike `openAsBlob`, reports why it cannot be opened. */
export async function opened(file: string): Promise<Blob> {
  if (!(await stat(file)).isFile()) throw new Error(`${file} is no file`)
  return openAsBlob(file).catch((cause: unknown) => {
    throw new Error(`${file} cannot be read; look at its rights`, { cause })
  })
}

/** Returns the paths from the response, in order; at least one. */
export async function upload(
  connection: Connection,
  { name, files, token, as, pinName, progress }: UploadRequest,
): Promise<string[]> {
  const { body, headers } = 'stream' in files ? streamed(files, progress) : formOf(files, progress)
  const query = new URLSearchParams(as)
  if (pinName !== undefined) query.set('name', pinName)
  const answer = await connection.ask(query.size === 0 ? '/add' : `/add?${query}`, {
    method: 'POST',
    headers: { ...headers, ...(token && { authorization: `Bearer ${token}` }) },
    body,
  })
  if (answer.statusCode !== 200) throw new Error(`${name}: ${wordsOf(answer.statusCode, await problemOf(answer))}`)
  const { cids = [] } = (await answer.body.json()) as { cids?: string[] }
  if (cids.length === 0) throw new Error(`${name}: the gateway answered no path`)
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
