// A multipart body with one streamed file, built by hand so that its length is known in advance.
import { randomBytes } from 'node:crypto'

export type Form = { readonly headers: Record<string, string>; readonly body: AsyncIterable<Uint8Array> }

export function fileForm(
  file: {
    readonly field: string
    readonly type: string
    readonly bytes: number
    readonly content: AsyncIterable<Uint8Array>
  },
  fields: Readonly<Record<string, string>> = {},
): Form {
  const boundary = `cidgate-${randomBytes(16).toString('hex')}`
  const texts = Object.entries(fields)
    .map(([name, value]) => `--${boundary}\r\nContent-Disposition: form-data; name="${name}"\r\n\r\n${value}\r\n`)
    .join('')
  const head = Buffer.from(
    `${texts}--${boundary}\r\nContent-Disposition: form-data; name="${file.field}"; filename="file"\r\nContent-Type: ${file.type}\r\n\r\n`,
  )
  const tail = Buffer.from(`\r\n--${boundary}--\r\n`)
  return {
    headers: {
      'content-type': `multipart/form-data; boundary=${boundary}`,
      'content-length': String(head.byteLength + file.bytes + tail.byteLength),
    },
    body: (async function* () {
      yield head
      yield* file.content
      yield tail
    })(),
  }
}
