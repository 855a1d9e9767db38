// A program of somebody who has nothing but /openapi.json: makes a client from it with @hey-api/openapi-ts, uploads and reads
// with that client, and tells what it saw, one JSON document on standard output.
// Usage: node openapi-client.mjs URL FOLDER, where FOLDER is where the client goes.
import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { createClient } from '@hey-api/openapi-ts'

const [url, folder] = process.argv.slice(2)
await createClient({
  input: `${url}/openapi.json`,
  output: { path: folder, importFileExtension: '.ts' },
  plugins: ['@hey-api/client-fetch', '@hey-api/typescript', '@hey-api/sdk'],
  logs: { level: 'silent', file: false },
})
const { client } = await import(pathToFileURL(join(folder, 'client.gen.ts')).href)
const { getIpfsContent, getIpfsContentAt, getIpnsContent, headIpfsContent, uploadToIpfs } = await import(
  pathToFileURL(join(folder, 'sdk.gen.ts')).href
)
client.setConfig({ baseUrl: url })

const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex')
const seen = {}
const bytes = new Uint8Array(300_000).map((_, index) => (index * 7) & 255)
const hashOf = ({ data }) => data.cids[0].slice('/ipfs/'.length)

const file = await uploadToIpfs({ body: { data: new File([bytes], 'a file.bin', { type: 'image/png' }) } })
seen.uploaded = [file.response.status, file.data.cids.length]
const got = await getIpfsContent({ path: { hash: hashOf(file) }, parseAs: 'arrayBuffer' })
seen.read = [got.response.status, got.response.headers.get('content-type'), sha256(new Uint8Array(got.data)) === sha256(bytes)]
const part = await getIpfsContent({ path: { hash: hashOf(file) }, headers: { Range: 'bytes=1-3' }, parseAs: 'arrayBuffer' })
seen.part = [part.response.status, [...new Uint8Array(part.data)]]
const head = await headIpfsContent({ path: { hash: hashOf(file) } })
seen.head = [head.response.status, head.response.headers.get('content-length')]
const car = await getIpfsContent({ path: { hash: hashOf(file) }, query: { format: 'car', 'dag-scope': 'block' } })
seen.car = car.response.headers.get('content-type')

const document = { name: 'a', description: 'b', fileURI: '/ipfs/bafkqaaa' }
const data = new Blob([JSON.stringify(document)])
const checked = await uploadToIpfs({ body: { data }, query: { schema: 'evidence' } })
seen.document = (await getIpfsContent({ path: { hash: hashOf(checked) } })).data
const refused = await uploadToIpfs({ body: { data: new Blob(['{}']) }, query: { schema: 'evidence' } })
seen.refused = [refused.response.status, refused.error.errors.map(({ field }) => field)]
const absent = await getIpfsContentAt({ path: { hash: hashOf(file), path: 'nothing' } })
seen.absent = [absent.response.status, absent.error.title]
const name = await getIpnsContent({ path: { name: 'k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r' } })
seen.name = [name.response.status, Array.isArray(name.error.attempts)]

process.stdout.write(JSON.stringify(seen))
