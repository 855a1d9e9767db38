// A program of somebody who reads verified content with @helia/verified-fetch, with cidgate as its only gateway: fetches
// each URL and tells what came, one JSON document on standard output. Usage: node verified-fetch.mjs GATEWAY URL…
// The node under it speaks HTTP only: the one that verified-fetch makes by itself would join the public network and look
// for peers around it, which no test may do. A gateway on this machine without TLS has to be allowed.
import { createHash } from 'node:crypto'
import { withHTTP } from '@helia/http'
import { createVerifiedFetch } from '@helia/verified-fetch'
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import { createHeliaLight } from 'helia'

const [gateway, ...urls] = process.argv.slice(2)
const local = { allowLocal: true, allowInsecure: true }
const node = withHTTP(createHeliaLight({ codecs: [dagCbor, dagJson] }), {
  // It wants to ask somebody who has what before it asks its gateway; a 404 is good enough for an answer.
  delegatedRouters: [gateway],
  recursiveGateways: [gateway],
  ...local,
})
const verifiedFetch = await createVerifiedFetch(await node.start())
const seen = []
for (const url of urls) {
  const answer = await verifiedFetch(url, { ...local, signal: AbortSignal.timeout(20_000) })
  const bytes = Buffer.from(await answer.arrayBuffer())
  seen.push({
    status: answer.status,
    type: answer.headers.get('content-type'),
    bytes: bytes.byteLength,
    sha256: createHash('sha256').update(bytes).digest('hex'),
    ...(bytes.byteLength < 1000 && { text: bytes.toString() }),
  })
}
process.stdout.write(JSON.stringify(seen))
process.exit(0)
