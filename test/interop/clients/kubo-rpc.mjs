// A program of somebody who knows Kubo's RPC and nothing of cidgate: puts a file in, gets it out in every way, and tells
// what it saw, one JSON document on standard output. Usage: node kubo-rpc.mjs URL
import { createHash } from 'node:crypto'
import { create } from 'kubo-rpc-client'

const [url, token] = process.argv.slice(2)
const client = create({ url, ...(token && { headers: { Authorization: `Bearer ${token}` } }) })
const bytes = Buffer.alloc(3_000_000, 'a line of a file that is larger than a chunk\n')
const digest = (pieces) => {
  const hash = createHash('sha256')
  for (const piece of pieces) hash.update(piece)
  return hash.digest('hex')
}
const seen = {}

const { version } = await client.version()
seen.version = version

const added = await client.add({ path: 'a name.txt', content: bytes }, { cidVersion: 1, rawLeaves: true })
seen.added = { cid: String(added.cid), path: added.path, size: added.size }
const old = await client.add(bytes, { cidVersion: 0 })
seen.old = String(old.cid)
seen.all = (await Array.fromAsync(client.addAll([{ path: 'one', content: 'first' }, { path: 'two', content: 'second' }]))).map(
  ({ path, cid }) => [path, String(cid)],
)

seen.expected = digest([bytes])
seen.cat = digest(await Array.fromAsync(client.cat(added.cid)))
seen.part = Buffer.concat(await Array.fromAsync(client.cat(added.cid, { offset: 7, length: 4 }))).toString()

const block = await client.block.get(added.cid)
seen.block = createHash('sha256').update(block).digest('hex')
seen.blockIsRoot = Buffer.from(added.cid.multihash.digest).toString('hex') === seen.block

seen.carBytes = (await Array.fromAsync(client.dag.export(added.cid))).reduce((sum, piece) => sum + piece.byteLength, 0)

seen.pinned = String(await client.pin.add(added.cid))
seen.pins = (await Array.fromAsync(client.pin.ls())).map(({ cid, type }) => [String(cid), type])
seen.pin = (await Array.fromAsync(client.pin.ls({ paths: added.cid }))).map(({ cid, type }) => [String(cid), type])

const car = await Array.fromAsync(client.dag.export(added.cid))
seen.imported = (await Array.fromAsync(client.dag.import([car]))).map(({ root }) => [String(root.cid), root.pinErrorMsg])
seen.links = (await Array.fromAsync(client.ls(added.cid))).map(({ size, type }) => [size, type])
seen.tarBytes = (await Array.fromAsync(client.get(added.cid))).reduce((sum, piece) => sum + piece.byteLength, 0)
seen.put = String(await client.block.put(Buffer.from('a block')))
seen.removed = await client.pin.rm(added.cid).then(
  (cid) => String(cid),
  (error) => error.message,
)

const missing = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
seen.missing = await Array.fromAsync(client.pin.ls({ paths: missing })).then(
  () => 'found',
  (error) => error.message,
)
process.stdout.write(JSON.stringify(seen))
process.exit(0)
