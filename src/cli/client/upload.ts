// One `POST /add`, for the commands that upload.
import { FormData } from 'undici'
import { type Connection, problemOf, wordsOf } from './connection.ts'

export type FileToSend = { readonly name: string; readonly content: Blob }

export type UploadRequest = {
  /** What the user called it: errors begin with it. */
  readonly name: string
  readonly files: readonly FileToSend[]
  readonly token: string | undefined
  readonly as: '' | 'wrap=true' | 'format=car'
}

/** The paths that the gateway answers, in its order; at least one. */
export async function upload(connection: Connection, { name, files, token, as }: UploadRequest): Promise<string[]> {
  const body = new FormData()
  for (const { name, content } of files) body.append('data', content, name)
  const headers = token ? { authorization: `Bearer ${token}` } : {}
  const answer = await connection.ask(as === '' ? '/add' : `/add?${as}`, { method: 'POST', headers, body })
  if (answer.statusCode !== 200) throw new Error(`${name}: ${wordsOf(answer.statusCode, await problemOf(answer))}`)
  const { cids = [] } = (await answer.body.json()) as { cids?: string[] }
  if (cids.length === 0) throw new Error(`${name}: the gateway answered no path`)
  return cids
}
