// Directories against Kubo: each shape gets the CID that Kubo gives it under the same profile, and CARs go from one to the other.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { profiles } from '../../backends/pinning/contract.ts'
import { multipart, post } from '../support/adding.ts'
import { directoryRows, partsOf } from '../support/directory-shapes.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { type Kubo, startKubo } from './support/kubo.ts'

/** Kubo reads a file name as a part of a URL. */
const escaped = (name: string): string => name.split('/').map(encodeURIComponent).join('/')

for (const profile of profiles) {
  describe(`a directory under ${profile}`, () => {
    let node: Kubo
    let at: TestGateway
    let thin: TestGateway
    before(async () => {
      node = await startKubo({ profile })
      const providers = [
        { name: 'local', use: 'embedded' },
        { name: 'kubo', use: 'kubo', url: node.rpc },
      ]
      at = await startGateway({
        config: { upload: { profile, kuboRpc: true }, pinning: { minConfirmations: 'all', providers } },
      })
      thin = await startGateway({
        config: { upload: { profile, forwardTo: `${node.rpc}/api/v0` }, pinning: { providers: [] } },
      })
    })
    after(async () => {
      await thin?.close()
      await at?.close()
      await node?.stop()
    })

    for (const { what, files, cids } of directoryRows) {
      test(`${what}: Kubo → the recorded CID`, async () => {
        const parts = [...partsOf(files())].map((part) => ({ ...part, fileName: escaped(part.fileName ?? '') }))
        const query = 'only-hash=true&wrap-with-directory=true&progress=false'
        const { status, body } = await post(`${node.rpc}/api/v0/add?${query}`, multipart(parts))
        assert.equal(status, 200, body)
        const lines = body.trim().split('\n')
        const { Name, Hash } = JSON.parse(lines.at(-1) ?? '') as { Name: string; Hash: string }
        assert.deepEqual([Name, Hash], ['', cids[profile]])
      })

      test(`${what}: uploaded here → same CID, readable at Kubo`, async () => {
        const { status, json, body } = await post(`${at.url}/add?wrap=true`, multipart([...partsOf(files())]))
        assert.equal(status, 200, body)
        const told = (json['cids'] as string[]).map((path) => path.slice('/ipfs/'.length))
        assert.equal(told.at(-1), cids[profile])
        const sent = files().filter(([path]) => !path.endsWith('/'))
        assert.equal(told.length, sent.length + 1)
        const [path, bytes] = sent.at(-1) as [string, number]
        const { body: here } = await fetchAll(`${at.url}/ipfs/${cids[profile]}/${escaped(path)}`)
        assert.equal(here.byteLength, bytes)
        assert.equal(node.ipfs(['cat', `/ipfs/${cids[profile]}/${path}`]).length, here.toString().length)
        assert.match(node.ipfs(['pin', 'ls', '--type=recursive', cids[profile]]), /recursive/)
      })
    }

    for (const { what, files, cids } of directoryRows)
      test(`${what}: through thin mode, any order → held by Kubo`, async () => {
        // Those of one directory are not beside each other.
        const parts = [...partsOf(files())].sort((a, b) =>
          String(a.fileName?.at(-1)).localeCompare(String(b.fileName?.at(-1))),
        )
        const { status, json, body } = await post(`${thin.url}/add?wrap=true`, multipart(parts))
        assert.equal(status, 200, body)
        assert.equal((json['cids'] as string[]).at(-1), `/ipfs/${cids[profile]}`)
      })

    test("name of a forwarded upload → name of Kubo's pins", async () => {
      for (const [wrap, name] of [
        ['', 'a file & 100 %'],
        ['&wrap=true', 'a directory'],
      ]) {
        const parts = multipart(['one', 'two'].map((fileName) => ({ fileName, body: `${fileName} ${wrap}` })))
        const { json } = await post(`${thin.url}/add?name=${encodeURIComponent(name as string)}${wrap}`, parts)
        const cids = (json['cids'] as string[]).map((path) => path.slice('/ipfs/'.length))
        for (const cid of wrap ? cids.slice(-1) : cids)
          assert.equal(node.ipfs(['pin', 'ls', '--names', cid]), `${cid} recursive ${name}\n`)
      }
    })

    test("`add -r` → lines and sizes as Kubo's", async () => {
      for (const { what, files } of directoryRows.filter(
        (row) => row.what !== 'sixty-four levels' && row.files().length < 1100,
      )) {
        const parts = [...partsOf(files())].map((part) => ({ ...part, fileName: escaped(part.fileName ?? '') }))
        const below = parts.map((part) => ({ ...part, fileName: `dir%2F${part.fileName}` }))
        for (const [query, sent] of [
          ['wrap-with-directory=true', parts],
          // What is not said is there as it is set, and here as in a Kubo without settings.
          ...(profile === 'unixfs-v0-2015'
            ? ([['wrap-with-directory=true&cid-version=1&raw-leaves=false', parts]] as const)
            : []),
          ['recursive=true', below],
        ] as const) {
          const say = async (rpc: string) => {
            const url = `${rpc}/api/v0/add?only-hash=true&progress=false&${query}`
            const { status, body } = await post(url, multipart(sent))
            assert.equal(status, 200, body)
            return body.trim().split('\n').sort()
          }
          assert.deepEqual(await say(at.url), await say(node.rpc), `${what}: ${query}`)
        }
      }
    })

    test('CAR exported by Kubo → imported and readable', async () => {
      const alone = await startGateway({
        config: { pinning: { providers: [{ name: 'local', use: 'embedded' }] } },
      })
      try {
        for (const { what, files, cids } of directoryRows) {
          const exported = await fetch(`${node.rpc}/api/v0/dag/export?arg=${cids[profile]}`, { method: 'POST' })
          const car = new Uint8Array(await exported.arrayBuffer())
          const { json, body } = await post(`${alone.url}/add?format=car`, multipart([{ fileName: 'a', body: car }]))
          assert.deepEqual(json['cids'], [`/ipfs/${cids[profile]}`], `${what}: ${body}`)
          const [path, bytes] = files().at(-1) as [string, number]
          const { body: read } = await fetchAll(`${alone.url}/ipfs/${cids[profile]}/${escaped(path)}`)
          assert.equal(read.byteLength, bytes, what)
        }
      } finally {
        await alone.close()
      }
    })
  })
}
