// A peer: node:http alone, with the gateway's response to one path, headers included.
import { createServer, get } from 'node:http'
import type { AddressInfo } from 'node:net'

const [of = '', etag = ''] = process.argv.slice(2)
const answer = await new Promise<{ headers: string[]; body: Buffer }>((resolve, reject) => {
  get(of, (response) => {
    const pieces: Buffer[] = []
    response.on('data', (piece: Buffer) => pieces.push(piece))
    response.on('end', () => resolve({ headers: response.rawHeaders, body: Buffer.concat(pieces) }))
  }).on('error', reject)
})
const headers: string[] = []
for (let index = 0; index < answer.headers.length; index += 2) {
  const name = answer.headers[index] ?? ''
  if (!/^(date|connection|keep-alive)$/i.test(name)) headers.push(name, answer.headers[index + 1] ?? '')
}
const notModified = headers.filter((_, index) => !/^content-(length|type)$/i.test(headers[index - (index % 2)] ?? ''))
const server = createServer((request, response) => {
  if (etag !== '' && request.headers['if-none-match'] === etag) return void response.writeHead(304, notModified).end()
  response.writeHead(200, headers)
  response.end(answer.body)
})
server.listen(0, '127.0.0.1', () =>
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`),
)
process.once('SIGTERM', () => process.exit(0))
