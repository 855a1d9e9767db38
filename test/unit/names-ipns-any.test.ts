// IPNS records in any form: one that is believed says what its key has signed, and none breaks the reader of it.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import * as dagCbor from '@ipld/dag-cbor'
import fc from 'fast-check'
import { varint } from 'multiformats'
import { isFailure } from '../../src/core/failure.ts'
import { type IpnsRecord, provedRecord } from '../../src/names/ipns-record.ts'
import { anyChanges, changed } from '../support/changes.ts'
import { createKey } from '../support/ipns.ts'
import { runs } from '../support/property.ts'

const key = createKey()
const now = Date.now()
const facts = { sequence: 7, ttlMs: 60_000, lifetimeMs: 86_400_000 }
const record = await key.record('/ipfs/bafkqaaa/true', facts)
/** Others that the key has signed. */
const newer = await key.record('/ipfs/bafkqaaa/othr', { ...facts, sequence: 8 })
const shorter = await key.record('/ipfs/bafkqaaa/true', { ...facts, lifetimeMs: 3_600_000 })
const ofOtherKey = await createKey().record('/ipfs/bafkqaaa/evil', facts)

/** A field of a protobuf message as it stands there, with its tag. */
type Field = { readonly number: number; readonly bytes: Uint8Array }

function fieldsOf(record: Uint8Array): Field[] {
  const fields: Field[] = []
  for (let at = 0; at < record.byteLength; ) {
    const [tag, tagBytes] = varint.decode(record, at)
    const [value, valueBytes] = varint.decode(record, at + tagBytes)
    const end = at + tagBytes + valueBytes + ((tag & 7) === 2 ? value : 0)
    fields.push({ number: tag >>> 3, bytes: record.subarray(at, end) })
    at = end
  }
  return fields
}

const joined = (fields: readonly Field[]): Uint8Array => Buffer.concat(fields.map(({ bytes }) => bytes))

/** Undefined where it is refused, as the record of an upstream that lied or as one that has expired. */
async function believed(bytes: Uint8Array): Promise<IpnsRecord | undefined> {
  try {
    return await provedRecord(key.cid, bytes, now)
  } catch (error) {
    assert.ok(isFailure(error, 'hash-mismatch') || isFailure(error, 'not-found'), String(error))
    return undefined
  }
}

const saidBy = ({ value, sequence, ttlMs, endsAt }: IpnsRecord) => ({ value, sequence, ttlMs, endsAt })

test('mutated record → refused, or same content', async () => {
  const truth = await believed(record)
  assert.ok(truth)
  let refused = 0
  const property = fc.asyncProperty(anyChanges(2, Buffer.of(0x42, 0x4a, 0x18, 0x58)), async (changes) => {
    const found = await believed(changes.reduce(changed, record))
    if (found) assert.deepEqual(saidBy(found), saidBy(truth))
    else refused++
  })
  await fc.assert(property, runs(80))
  assert.ok(refused > 30, `${refused} were refused`)
})

type Step = { readonly kind: string; readonly at: number; readonly to: number; readonly field: Field }

function stepped(fields: readonly Field[], { kind, at, to, field }: Step): readonly Field[] {
  const own = fields.slice(at, at + 1)
  switch (kind) {
    case 'other':
      return fields.map((one) => (one.number === field.number ? field : one))
    case 'put in':
      return fields.toSpliced(at, 0, field)
    case 'gone':
      return fields.toSpliced(at, 1)
    case 'twice':
      return fields.toSpliced(to, 0, ...own)
    default:
      return fields.toSpliced(at, 1).toSpliced(to, 0, ...own)
  }
}

test('mixed fields of several records → one valid record or refused', async () => {
  const signed = (await Promise.all([record, newer, shorter].map(believed))).map((one) => one && saidBy(one))
  const own = fieldsOf(record)
  assert.deepEqual(joined(own), Buffer.from(record))
  const unknown = [Buffer.of(0x7a, 2, 1, 2), Buffer.of(0x78, 1), Buffer.of(0x7d, 1, 2, 3, 4), Buffer.of(0xfa, 1, 0)]
  const strange = [newer, shorter, ofOtherKey].flatMap(fieldsOf).concat(unknown.map((bytes) => ({ number: 15, bytes })))
  const step = fc.record({
    kind: fc.constantFrom('other', 'put in', 'gone', 'twice', 'moved'),
    at: fc.nat(own.length - 1),
    to: fc.nat(own.length - 1),
    field: fc.constantFrom(...strange),
  })
  let count = 0
  const property = fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 4 }), async (steps) => {
    const found = await believed(joined(steps.reduce(stepped, own)))
    if (!found) return
    count++
    assert.ok(
      signed.some((one) => isDeepStrictEqual(one, saidBy(found))),
      JSON.stringify(found.value),
    )
  })
  await fc.assert(property, runs(80))
  assert.ok(count > 5, `${count} were believed`)
})

test('any signed data → refused, or valid sequence, end and TTL', async () => {
  const anything = fc.oneof(
    fc.constantFrom<unknown>(
      0,
      1,
      -1,
      1.5,
      2 ** 53,
      2n ** 64n - 1n,
      -(2n ** 63n),
      null,
      true,
      '',
      [],
      {},
      Buffer.of(1),
    ),
    fc.constantFrom<unknown>(undefined),
  )
  const value = fc
    .constantFrom('/ipfs/bafkqaaa', '/', '', 'bafkqaaa', 'nothing', '/\0')
    .map((text) => Buffer.from(text))
  const end = fc
    .constantFrom('2999-01-31T00:00:00Z', '2999-01-31T00:00:00.123456789Z', '2999', '+999999-01-01T00:00:00Z', 'x', '')
    .map((text) => Buffer.from(text))
  const data = fc.record({
    Value: fc.oneof(value, value, anything),
    Validity: fc.oneof(end, end, anything),
    ValidityType: fc.oneof(fc.constant(0), fc.constant(0), anything),
    Sequence: fc.oneof(fc.nat(), anything),
    TTL: fc.oneof(fc.nat(), anything),
  })
  let count = 0
  const property = fc.asyncProperty(data, async (all) => {
    const said = Object.fromEntries(Object.entries(all).filter(([, one]) => one !== undefined))
    const found = await believed(key.signed(dagCbor.encode(said)))
    if (!found) return
    count++
    assert.ok(typeof found.sequence === 'bigint' && found.sequence >= 0n, `sequence ${found.sequence}`)
    assert.ok(Number.isFinite(found.ttlMs) && found.ttlMs >= 0, `${found.ttlMs} ms`)
    assert.ok(Number.isFinite(found.endsAt) && found.endsAt > now, `ends at ${found.endsAt}`)
    assert.match(found.value, /^\//)
  })
  await fc.assert(property, runs(80))
  assert.ok(count > 5, `${count} were believed`)
})
