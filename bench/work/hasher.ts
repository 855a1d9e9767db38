// A peer: node:http over files, which reads, hashes and writes pieces of 1 MiB through one buffer.
// The minimum cost of a large file whose every byte is verified.
import { hash } from 'node:crypto'
import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { basename, join } from 'node:path'

const [folder = ''] = process.argv.slice(2)
const pieceBytes = 1024 * 1024

const server = createServer(async ({ url = '' }, response) => {
  // Aligned like the gateway's buffers (`src/core/disk/buffers.ts`), for Zen 3.
  const buffer = Buffer.allocUnsafeSlow(64 + pieceBytes).subarray(64)
  const fd = openSync(join(folder, basename(url)), 'r')
  const { size } = fstatSync(fd)
  response.writeHead(200, { 'Content-Type': 'application/octet-stream', 'Content-Length': size })
  for (let at = 0; at < size; at += pieceBytes) {
    const piece = buffer.subarray(0, readSync(fd, buffer, 0, pieceBytes, at))
    hash('sha256', piece)
    await new Promise((resolve) => response.write(piece, resolve))
  }
  closeSync(fd)
  response.end()
})
server.listen(0, '127.0.0.1', () =>
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`),
)
process.once('SIGTERM', () => process.exit(0))
