// What counts as a document of a kind, beside what JSON Schema has words for.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { isFailure } from '../../src/core/failure.ts'
import { createSchemaChecks } from '../../src/schemas/checks.ts'

const { check } = createSchemaChecks({ maxBytes: 1_000_000 }).check('evidence')
const isTaken = (fileURI: string): boolean => {
  try {
    check(JSON.stringify({ name: 'a', description: 'b', fileURI }))
    return true
  } catch (error) {
    assert.ok(isFailure(error, 'malformed'), String(error))
    return false
  }
}

describe('fileURI', () => {
  const cids = [
    'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy',
    'bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi',
    'QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG',
    'zb2rhe5P4gXftAwvA4eXQ5HJwsER2owDyS9sKaQRRVQPn93bA',
  ]
  for (const cid of cids) {
    test(`${cid} without any two letters → refused`, () => {
      assert.ok(isTaken(`/ipfs/${cid}`))
      for (let one = 0; one < cid.length; one++)
        for (let other = one + 1; other < cid.length; other++) {
          const left = cid.slice(0, one) + cid.slice(one + 1, other) + cid.slice(other + 1)
          assert.ok(!isTaken(`/ipfs/${left}`), left)
        }
    })
  }
})

describe("operator's own schema", () => {
  test('may use unknown formats, and ours', () => {
    const own = {
      receipt: {
        type: 'object',
        properties: { at: { type: 'string', format: 'date-time' }, of: { type: 'string', format: 'ipfs-path' } },
      },
    }
    const { check: checkReceipt } = createSchemaChecks({ maxBytes: 1000, own }).check('receipt')
    checkReceipt('{"at":"yesterday","of":"/ipfs/bafkqaaa"}')
    assert.throws(() => checkReceipt('{"of":"/ipfs/abcdefghij"}'), /of must be \/ipfs\/<cid>/)
  })
})
