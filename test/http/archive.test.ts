// An archive: a gateway without upstreams. What its tiers do not have is not found, as long as they could be asked;
// otherwise it is 503.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { fixtures } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { startS3Server } from '../support/s3-server.ts'

const paths = [
  '/ipfs/bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e',
  '/ipfs/bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi/docs/readme.md',
  '/ipfs/bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi?format=car',
  '/ipns/k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r',
]

for (const types of ['api', 'web'] as const) {
  describe(`archive, ${types} mode`, () => {
    let at: TestGateway
    before(async () => {
      at = await startGateway({ config: { responses: { types } } })
    })
    after(() => at.close())

    for (const path of paths)
      test(`${path} → 404`, async () => {
        const { status, headers, body } = await fetchAll(at.url + path, { accept: 'application/json' })
        const problem = JSON.parse(body.toString()) as Record<string, unknown>
        assert.deepEqual([status, problem['title']], [404, 'Not found'])
        assert.match(String(problem['detail']), /no upstream (to ask|is configured)|no upstreams configured/)
        assert.ok(Number(headers['retry-after']) >= 1)
        if (path.startsWith('/ipfs')) assert.equal(headers['cache-control'], 'no-store')
      })

    test('unreachable tier may have it → not reported as absent', async () => {
      const { files } = await fixtures()
      const server = await startS3Server()
      const { bucket, endpoint, accessKeyId, secretAccessKey } = server
      const s3 = { use: 's3', bucket, endpoint, accessKeyId, secretAccessKey, forcePathStyle: true }
      const shared = await startGateway({ config: { responses: { types }, cache: { tiers: [s3] } } })
      try {
        await server.refuse()
        const answer = await fetchAll(`${shared.url}/ipfs/${files.hello.cid}`, { accept: 'application/json' })
        assert.equal(answer.status, 503)
        const { title, detail } = JSON.parse(answer.body.toString()) as { title: string; detail: string }
        assert.equal(title, 'A store could not be asked')
        assert.match(detail, /may be in a tier that failed .* no upstream to ask; retry/)
        assert.ok(Number(answer.headers['retry-after']) >= 1)
        assert.equal(answer.headers['cache-control'], 'no-store')
      } finally {
        await shared.close()
        await server.stop()
      }
    })
  })
}
