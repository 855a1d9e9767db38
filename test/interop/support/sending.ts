// Files of any size, made while they are sent: one multipart body for `/add` here and for `add` there.
import { Readable } from 'node:stream'
import { request } from 'undici'
import { noise } from '../../support/fixtures.ts'

const mebibyte = 1024 * 1024
const pattern = noise(mebibyte, 77)

/** Always the same bytes for the same length; no two mebibytes of them are alike. */
export function* made(bytes: number): Generator<Uint8Array> {
  for (let at = 0; at < bytes; at += mebibyte) {
    const piece = Buffer.from(pattern.subarray(0, Math.min(mebibyte, bytes - at)))
    if (piece.byteLength >= 8) piece.writeDoubleLE(at, 0)
    yield piece
  }
}

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
