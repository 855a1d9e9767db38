// Upstreams with limited bandwidth, in a process of their own. Prints their addresses and files as
// one line of JSON.
import { addFile, type BlockMap, noise } from '../../test/support/fixtures.ts'
import { startUpstream } from '../../test/support/upstream.ts'

const mib = 1024 * 1024
const [count, bytesPerSecond, ...sizes] = process.argv.slice(2).map(Number)
const blocks: BlockMap = new Map()
const files: { cid: string; bytes: number }[] = []
for (const [index, size] of sizes.entries()) {
  const bytes = size * mib
  files.push({ cid: (await addFile(blocks, noise(bytes, index + 1), 'v0')).cid.toString(), bytes })
}
const upstreams = await Promise.all(Array.from({ length: count ?? 1 }, () => startUpstream({ blocks })))
for (const one of upstreams) one.bytesPerSecond = bytesPerSecond
process.stdout.write(`${JSON.stringify({ urls: upstreams.map(({ url }) => url), files })}\n`)
process.once('SIGTERM', () => process.exit(0))
