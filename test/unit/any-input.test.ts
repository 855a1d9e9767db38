// What strangers write, in any form: parsers answer or refuse and never break, and no single change to a block, to what a tier
// holds or to a CAR goes unnoticed.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { parsePath } from '../../src/content/path.ts'
import { blockKey, proves } from '../../src/core/block.ts'
import { codec, hash } from '../../src/core/cid.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { readCar } from '../../src/core/wire/car-stream.ts'
import { readList } from '../../src/deny/read-list.ts'
import { createAccepts, formats } from '../../src/http/content/negotiate.ts'
import { parseRange } from '../../src/http/content/range.ts'
import { writeCar } from '../../src/ipld/car.ts'
import { proved } from '../../src/retrieval/tiers/proof/proved.ts'
import { parseRedirects, redirect } from '../../src/web/redirects.ts'
import { addFile, type BlockMap, noise } from '../support/fixtures.ts'
import { scriptedTier } from '../support/scripted-tier.ts'

/** The answer, or undefined where it was refused as a Failure. Anything else fails the test. */
function answerOf<Answer>(ask: () => Answer): Answer | undefined {
  try {
    return ask()
  } catch (error) {
    assert.ok(isFailure(error) && error.kind !== 'internal', String(error))
    return undefined
  }
}

/** Every bit flipped in turn, every byte taken out, and one byte more at either end. */
function* singleChanges(bytes: Uint8Array, step = 1): Generator<Uint8Array> {
  for (let at = 0; at < bytes.byteLength; at += step) {
    for (let bit = 1; bit < 256; bit <<= 1) yield bytes.map((byte, index) => (index === at ? byte ^ bit : byte))
    yield Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1)])
  }
  yield Buffer.concat([Buffer.of(0), bytes])
  yield Buffer.concat([bytes, Buffer.of(0)])
}

const blocks: BlockMap = new Map()
const file = await addFile(blocks, noise(100, 5))
const whole = blocks.get(blockKey(file.cid)) as Uint8Array

test('every single change to a block is seen', () => {
  assert.ok(proves(file.cid, whole))
  for (const changed of singleChanges(whole)) assert.equal(proves(file.cid, changed), false)
})

test('every single change to what a tier holds is a miss, and is deleted', async () => {
  const tier = scriptedTier('store')
  const guarded = proved(tier, { log: silentLog })
  let changes = 0
  for (const changed of singleChanges(whole)) {
    changes++
    tier.held.set(blockKey(file.cid), changed)
    assert.equal(await guarded.get(file.cid), undefined)
    assert.equal(tier.held.size, 0)
  }
  assert.equal(guarded.corrupt, changes)
})

test('every single change to a CAR is refused, or leaves each block what its CID says', async () => {
  async function* one() {
    yield { cid: file.cid, bytes: whole }
  }
  const car = Buffer.concat(await Array.fromAsync(writeCar(file.cid, one())))
  const broken = (what: string) => new Failure('broken', `the CAR ${what}`, { source: 'upstream' })
  let refused = 0
  let wrong = 0
  for (const changed of singleChanges(car)) {
    async function* chunks() {
      yield Uint8Array.from(changed)
    }
    try {
      for await (const { cid, bytes } of readCar(chunks(), { broken })) {
        if (!proves(cid, bytes)) refused++
        // A block that is right by its own CID is the one that was sent: nobody finds another by a single change.
        else wrong += Number(blockKey(cid) !== blockKey(file.cid) || Buffer.compare(bytes, whole))
      }
    } catch (error) {
      assert.match(String(error), /the CAR /)
      refused++
    }
  }
  assert.equal(wrong, 0)
  assert.ok(refused > whole.byteLength * 8, `${refused} refused`)
})

test('a range is the first of the list that lies in the file, cut at its end', () => {
  const spec = fc.oneof(
    fc.tuple(fc.nat(60), fc.nat(60)).map(([first, more]) => ({ first, last: first + more })),
    fc.nat(60).map((first) => ({ first, last: undefined })),
    fc.nat(60).map((last) => ({ first: undefined, last })),
  )
  type Spec = { readonly first: number | undefined; readonly last: number | undefined }
  const offsets = ({ first, last }: Spec, size: number): number[] =>
    Array.from({ length: size }, (_, at) => at).filter((at) =>
      first === undefined ? at >= size - (last ?? 0) : at >= first && at <= (last ?? size),
    )
  fc.assert(
    fc.property(fc.array(spec, { minLength: 1, maxLength: 4 }), fc.integer({ min: 1, max: 50 }), (specs, size) => {
      const header = `bytes=${specs.map(({ first = '', last = '' }) => `${first}-${last}`).join(', ')}`
      const wanted = specs.map((one) => offsets(one, size)).find((all) => all.length > 0)
      assert.deepEqual(parseRange(header, size), wanted ? { from: wanted[0], to: wanted.at(-1) } : 'unsatisfiable')
    }),
    { seed: 1, numRuns: 500 },
  )
})

const odd = fc.string({ unit: fc.constantFrom(...'/:*%?# \n\r\t\0.aA0é;=,qb', 'http://a', ':splat', '301', 'ipfs') })

test('any `_redirects` is read or refused, and leads to an address that a header can carry', () => {
  const rule = fc
    .tuple(odd, odd, fc.constantFrom('', ' 200', ' 301', ' 404'))
    .map(([from, to, status]) => `/${from} /${to}${status}`)
  fc.assert(
    fc.property(fc.array(fc.oneof(rule, odd), { maxLength: 5 }), odd, odd, (lines, path, query) => {
      const rules = answerOf(() => parseRedirects(lines.join('\n')))
      const led = rules && answerOf(() => redirect(rules, `/${path}`, query))
      if (led?.kind === 'redirect') assert.match(led.location, /^[^\0\r\n]*$/)
    }),
    { seed: 2, numRuns: 1000 },
  )
})

test('any list of denials is read, and what makes no sense is told by its line', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(
        fc.oneof(
          odd,
          odd.map((rest) => `/ipfs/${rest}`),
          odd.map((rest) => `//${rest}`),
        ),
      ),
      async (lines) => {
        const { list, faultCount } = await readList('any', lines.join('\n'))
        assert.ok(faultCount <= list.lines)
      },
    ),
    { seed: 3, numRuns: 300 },
  )
})

test('any Accept is understood as one of the formats', () => {
  const type = fc.constantFrom(
    'application/vnd.ipld.car',
    'application/vnd.ipld.raw',
    'text/html',
    '*/*',
    'application/json',
  )
  const header = fc.array(
    fc.oneof(
      odd,
      fc.tuple(type, odd).map(([name, more]) => `${name};${more}`),
      type,
    ),
    { maxLength: 5 },
  )
  const accepts = createAccepts()
  fc.assert(
    fc.property(header, (all) => {
      const choice = answerOf(() => accepts(all.join(',')))
      assert.ok(choice === undefined || choice === 'file' || formats.has(choice), choice)
    }),
    { seed: 4, numRuns: 1000 },
  )
})

test('any path is taken apart or refused', () => {
  const root = fc.oneof(
    odd,
    fc
      .uint8Array({ minLength: 32, maxLength: 32 })
      .map((digest) => CID.createV1(codec.raw, create(hash.sha256, digest)).toString()),
  )
  fc.assert(
    fc.property(root, odd, (first, rest) => {
      const path = answerOf(() => parsePath(`${first}/${rest}`))
      if (path) assert.equal(path.segments.length, path.encoded.length)
    }),
    { seed: 5, numRuns: 1000 },
  )
})
