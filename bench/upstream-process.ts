// The programmable upstreams of the tests in a process of their own, whose work costs the gateway nothing. Prints their
// addresses and files as one line of JSON; a message sets the fault and the delay of one of them.
import { addFile, type BlockMap, noise } from '../test/support/fixtures.ts'
import { type Fault, startUpstream } from '../test/support/upstream.ts'

const mib = 1024 * 1024
const [count = '1', ...sizes] = process.argv.slice(2)

const blocks: BlockMap = new Map()
const files: { cid: string; bytes: number }[] = []
for (const [index, size] of sizes.entries()) {
  const bytes = Number(size) * mib
  files.push({ cid: (await addFile(blocks, noise(bytes, index + 1), 'v0')).cid.toString(), bytes })
}
const upstreams = await Promise.all(Array.from({ length: Number(count) }, () => startUpstream({ blocks })))

const bytesPerSecond = process.env['BENCH_BYTES_PER_SECOND']
if (bytesPerSecond !== undefined) for (const one of upstreams) one.bytesPerSecond = Number(bytesPerSecond)

export type Command = { readonly index: number; readonly fault?: Fault; readonly delayMs: number }

process.on('message', ({ index, fault, delayMs }: Command) => {
  const upstream = upstreams[index]
  if (!upstream) return
  upstream.fault = fault
  upstream.delayMs = delayMs
  const asked = upstreams.reduce((sum, one) => sum + one.asked.length, 0)
  process.send?.({ asked })
})
process.on('disconnect', () => process.exit())
process.stdout.write(`${JSON.stringify({ urls: upstreams.map(({ url }) => url), files })}\n`)
