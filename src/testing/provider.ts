// The contract suite of providers, for a stand-in with the wire format of the service or the
// service itself. Cases that need a misbehaving service are in test/contract/providers.test.ts.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { CID } from 'multiformats/cid'
import type { Profile, Provider, Upload } from '../../backends/pinning/contract.ts'
import { type Block, blockKey } from '../core/cid.ts'
import { type Failure, isFailure } from '../core/failure.ts'
import { linksOf } from '../ipld/block-links.ts'
import { carHeader, carSection } from '../ipld/car.ts'
import { addFile, type BlockMap, noise } from './content.ts'

/** A provider under test, and the test's control of its service. */
export type ProviderUnderTest = {
  readonly provider: Provider
  /** The same service with a wrong secret; undefined if the service needs none. */
  readonly stranger?: Provider
  /** The name of a pin at the service; undefined if its API has no names. */
  readonly nameOf?: (cid: CID) => Promise<string | undefined>
  /** Offers the content, for a service that fetches by CID. */
  readonly offer?: (upload: Upload) => Promise<void>
  /** True if it cannot delete uploads. */
  readonly keepsAll?: boolean
  /** The profiles whose CIDs it preserves. Default: all. */
  readonly profiles?: readonly Profile[]
  stop(): Promise<void>
}

const signal = () => new AbortController().signal

export async function providerFailure(work: Promise<unknown>, secrets: readonly string[] = []): Promise<Failure> {
  const error: unknown = await work.then(
    () => assert.fail('it should have failed'),
    (reason: unknown) => reason,
  )
  assert.ok(isFailure(error), `no Failure: ${String(error)}`)
  assert.equal(error.source, 'provider')
  for (const secret of secrets) assert.ok(!error.message.includes(secret), `a secret in: ${error.message}`)
  return error
}

const uploads: readonly [what: string, bytes: number, profile: Profile][] = [
  ['one byte', 1, 'unixfs-v1-2025'],
  ['a chunk and a byte', 1024 * 1024 + 1, 'unixfs-v1-2025'],
  ['one byte, v0', 1, 'unixfs-v0-2015'],
  ['three chunks, v0', 600_000, 'unixfs-v0-2015'],
]

/** The upload, with an event after `least` bytes were read. */
function readUntil(upload: Upload, minBytes: number, event: () => void): Upload {
  async function* watched<Piece extends Uint8Array | Block>(source: AsyncIterable<Piece>) {
    let read = 0
    for await (const piece of source) {
      yield piece
      read += piece instanceof Uint8Array ? piece.byteLength : piece.bytes.byteLength
      if (read >= minBytes) event()
    }
  }
  return {
    ...upload,
    file: (own) => watched(upload.file(own)),
    car: (own) => watched(upload.car(own)),
    blocks: (own) => watched(upload.blocks(own)),
  }
}

/**
 * Declares the suite with node:test. Each case has a service of its own, or a shared one from
 * `make`: no case depends on the state that another left.
 */
export function providerContract(name: string, make: () => Promise<ProviderUnderTest>): void {
  const with_ = (run: (service: ProviderUnderTest) => Promise<void>) => async () => {
    const service = await make()
    try {
      await run(service)
    } finally {
      await service.stop()
    }
  }

  describe(`provider: ${name}`, () => {
    test(
      'pin, pin again, unpin, unpin again → status follows',
      with_(async ({ provider, offer, keepsAll }) => {
        const upload = await memoryUpload(noise(2_500_000, 5))
        await offer?.(upload)
        await provider.probe(signal())
        assert.equal(await provider.status(upload.cid, signal()), 'missing')
        for (let count = 0; count < 2; count++)
          assert.equal(String(await provider.pin(upload, signal())), String(upload.cid))
        assert.equal(await provider.status(upload.cid, signal()), 'pinned')
        await provider.unpin(upload.cid, signal())
        if (!keepsAll) assert.equal(await provider.status(upload.cid, signal()), 'missing')
        await provider.unpin(upload.cid, signal())
      }),
    )

    test(
      'upload of either profile → same CID',
      with_(async ({ provider, offer, profiles }) => {
        for (const [what, bytes, profile] of uploads) {
          if (profiles && !profiles.includes(profile)) continue
          const upload = await memoryUpload(noise(bytes, 7), profile)
          await offer?.(upload)
          assert.equal(String(await provider.pin(upload, signal())), String(upload.cid), what)
          assert.equal(await provider.status(upload.cid, signal()), 'pinned', what)
          await provider.unpin(upload.cid, signal())
        }
      }),
    )

    test(
      'upload with a name → name of the pin',
      with_(async ({ provider, offer, nameOf }) => {
        if (!nameOf) return
        const name = 'Ein Bericht über 100 % & mehr'
        const upload = { ...(await memoryUpload(noise(300_000, 13))), name }
        await offer?.(upload)
        await provider.pin(upload, signal())
        assert.equal(await nameOf(upload.cid), name)
        await provider.unpin(upload.cid, signal())
      }),
    )

    test(
      'two uploads at once → two pins',
      with_(async ({ provider, offer }) => {
        const pair = await Promise.all([8, 9].map((seed) => memoryUpload(noise(300_000, seed))))
        for (const upload of pair) await offer?.(upload)
        const results = await Promise.all(pair.map((upload) => provider.pin(upload, signal())))
        assert.deepEqual(
          results.map(String),
          pair.map(({ cid }) => String(cid)),
        )
        for (const { cid } of pair) await provider.unpin(cid, signal())
      }),
    )

    test(
      'aborted call → its reason; next call starts anew',
      with_(async ({ provider, offer }) => {
        const upload = await memoryUpload(noise(2_500_000, 10))
        await offer?.(upload)
        const reason = new Error('enough')
        const isReason = (error: unknown) => error === reason
        const gone = AbortSignal.abort(reason)
        await assert.rejects(provider.pin(upload, gone), isReason)
        await assert.rejects(provider.status(upload.cid, gone), isReason)
        if (provider.traits.takesBytes) {
          const controller = new AbortController()
          const leaving = readUntil(upload, 500_000, () => controller.abort(reason))
          await assert.rejects(provider.pin(leaving, controller.signal), isReason)
        }
        assert.equal(String(await provider.pin(upload, signal())), String(upload.cid))
        await provider.unpin(upload.cid, signal())
      }),
    )

    test(
      'unreadable upload → no pin',
      with_(async ({ provider }) => {
        if (!provider.traits.takesBytes) return
        const upload = await memoryUpload(noise(2_500_000, 11))
        const broken = readUntil(upload, 500_000, () => {
          throw new Error('the upload broke')
        })
        await assert.rejects(provider.pin(broken, signal()))
        assert.equal(await provider.status(upload.cid, signal()), 'missing')
      }),
    )

    test(
      'wrong secret → class auth, with the next step',
      with_(async ({ stranger, offer }) => {
        if (!stranger) return
        const upload = await memoryUpload(noise(100_000, 12))
        await offer?.(upload)
        for (const work of [() => stranger.pin(upload, signal()), () => stranger.probe(signal())]) {
          const { facts, message } = await providerFailure(work(), ['a-wrong-secret'])
          assert.equal(facts['class'], 'auth')
          assert.match(message, /token|password|secret|key/i)
        }
      }),
    )
  })
}

export type MemoryUpload = Upload & { readonly reads: { files: number; cars: number } }

export async function memoryUpload(bytes: Uint8Array, profile: Profile = 'unixfs-v1-2025'): Promise<MemoryUpload> {
  const map: BlockMap = new Map()
  const { cid } = await addFile(map, bytes, profile === 'unixfs-v1-2025' ? 'v1' : 'v0')
  const all: Block[] = []
  const walk = (one: CID) => {
    const block = { cid: one, bytes: map.get(blockKey(one)) as Uint8Array }
    all.push(block)
    for (const link of linksOf(block)) walk(link)
  }
  walk(cid)
  const car = Buffer.concat([carHeader(cid), ...all.flatMap((block) => [...carSection(block)])])
  const reads = { files: 0, cars: 0 }
  const inChunks = async function* (whole: Uint8Array) {
    for (let at = 0; at < whole.byteLength; at += 65_536) yield whole.subarray(at, at + 65_536)
  }
  return {
    cid,
    profile,
    bytes: bytes.byteLength,
    carBytes: car.byteLength,
    reads,
    file() {
      reads.files++
      return inChunks(bytes)
    },
    car() {
      reads.cars++
      return inChunks(car)
    },
    async *blocks() {
      yield* all
    },
  }
}
