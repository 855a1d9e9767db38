// A peer: node:http over files, each piece of 1 MiB read into one buffer, hashed and written, and nothing else. It is what a large
// file costs at least where every byte is looked at before it is sent.
import { hash } from 'node:crypto'
import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { basename, join } from 'node:path'

const [folder = ''] = process.argv.slice(2)
const pieceBytes = 1024 * 1024

const server = createServer(async ({ url = '' }, response) => {
  // Like the gateway's own (`src/core/disk/buffers.ts`): where malloc begins a large buffer, Zen 3 copies slowly.
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
