// Files of any size, made while they are sent: one multipart body for `/add` here and for `add` there.
import { Readable } from 'node:stream'
import { request } from 'undici'
import { made } from '../../support/made.ts'

export async function sendFile(url: string, bytes: number): Promise<{ status: number; text: string }> {
  const head = Buffer.from(
    '--boundary\r\nContent-Disposition: form-data; name="data"; filename="file"\r\n' +
      'Content-Type: application/octet-stream\r\n\r\n',
  )
  const tail = Buffer.from('\r\n--boundary--\r\n')
  function* body() {
    yield head
    yield* made(bytes)
    yield tail
  }
  const { statusCode, body: answer } = await request(url, {
    method: 'POST',
    headers: {
      'content-type': 'multipart/form-data; boundary=boundary',
      'content-length': String(head.byteLength + bytes + tail.byteLength),
    },
    body: Readable.from(body(), { objectMode: false }),
    headersTimeout: 180_000,
    bodyTimeout: 180_000,
  })
  return { status: statusCode, text: await answer.text() }
}
