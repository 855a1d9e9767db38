// Random histories of a gateway against a simple model of what must be readable: uploads, reads, restarts, upstreams and
// stores that break and get well. What was acknowledged is read whatever happened since, no read ever gives other bytes, and
// what an upstream that was always well has is found. A history that fails is cut down to the shortest one that does, and
// told with its seed. `npm test` runs the same few each time; `CIDGATE_MODEL_RUNS=10000` runs so many others, and `CIDGATE_MODEL_SEED` a
// seed again.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { test } from 'node:test'
import fc from 'fast-check'
import { silentLog } from '../../src/core/log.ts'
import { createGateway, type Gateway, isFailure } from '../../src/gateway.ts'
import { addFile, type BlockMap, type FileFixture, noise } from '../support/fixtures.ts'
import { tempFolder } from '../support/gateway.ts'
import { type ScriptedTier, scriptedTier } from '../support/scripted-tier.ts'
import { scriptedUpstream } from '../support/scripted-upstream.ts'

// One block, several, and one that the upstream lacks. Few, so that a history comes back to what it did.
const remote: BlockMap = new Map()
const files: readonly FileFixture[] = [
  await addFile(remote, noise(1000, 1)),
  await addFile(remote, noise(600_000, 2)),
  await addFile(new Map(), noise(5000, 3)),
]
const isRemote = (index: number): boolean => index < 2

type Model = { readonly uploaded: Set<number>; wasUpstreamBroken: boolean }
type Real = {
  readonly folder: string
  readonly tier: ScriptedTier
  readonly upstream: { lieAt?: number; breakAfter?: number }
  gateway: Gateway
}
type Step = fc.AsyncCommand<Model, Real>

async function start(folder: string, tier: ScriptedTier, upstream: Real['upstream']): Promise<Gateway> {
  const gateway = createGateway(
    {
      data: folder,
      admin: false,
      // Long, since no upstream of this test is ever silent: a busy machine is no reason to find nothing.
      retrieval: { upstreams: [], probeEvery: 0, deadline: '1m' },
      cache: {
        tiers: [
          { use: 'memory', maxBytes: '16MiB' },
          { use: 'disk', maxBytes: '16MiB' },
        ],
      },
    },
    { log: silentLog, tiers: [tier], upstreams: [scriptedUpstream('remote', remote, upstream)] },
  )
  await gateway.start()
  return gateway
}

/** What need not be there is not waited for to the deadline. */
const patience = (isThere: boolean) => (isThere ? undefined : AbortSignal.timeout(50))

async function bytesOf(gateway: Gateway, { cid }: FileFixture, isThere: boolean): Promise<Buffer | undefined> {
  const pieces: Uint8Array[] = []
  const signal = patience(isThere)
  try {
    const got = await gateway.get(`/ipfs/${cid}`, { signal })
    for await (const piece of got.bytes) pieces.push(Uint8Array.from(piece))
    return Buffer.concat(pieces)
  } catch (error) {
    assert.ok(signal?.aborted || (isFailure(error) && error.kind !== 'internal'), String(error))
    return undefined
  }
}

const named = (name: string, step: Pick<Step, 'run'> & Partial<Pick<Step, 'check'>>): Step => ({
  check: () => true,
  toString: () => name,
  ...step,
})

const upload = (index: number): Step =>
  named(`upload ${index}`, {
    async run(model, { gateway }) {
      const { bytes, cid } = files[index] as FileFixture
      const added = await gateway.add(bytes)
      assert.equal(added.cid.toString(), cid.toString())
      model.uploaded.add(index)
    },
  })

const read = (index: number): Step =>
  named(`read ${index}`, {
    async run(model, { gateway }) {
      const wanted = files[index] as FileFixture
      const isThere = model.uploaded.has(index) || (isRemote(index) && !model.wasUpstreamBroken)
      const bytes = await bytesOf(gateway, wanted, isThere)
      if (isThere) assert.ok(bytes, `${wanted.cid} is not found`)
      if (bytes) assert.ok(bytes.equals(wanted.bytes), `${wanted.cid} has other bytes`)
    },
  })

/** The store has all that was on its way to it when the gateway is closed. */
const restart = (rots: boolean): Step =>
  named(rots ? 'restart, while all that the store holds rots' : 'restart', {
    async run(_model, real) {
      await real.gateway.close()
      const { held } = real.tier
      if (rots) for (const [key, bytes] of held) held.set(key, rotten(bytes))
      real.gateway = await start(real.folder, real.tier, real.upstream)
    },
  })

// The same each time: rotten twice is not well again.
const rotten = (bytes: Uint8Array): Uint8Array => Uint8Array.from(bytes).fill(0, bytes.byteLength >> 1)

const upstreamLies = (how: number | undefined): Step =>
  named(how === undefined ? 'the upstream is well' : `the upstream lies at ${how}`, {
    async run(model, { upstream }) {
      if (how === undefined) delete upstream.lieAt
      else upstream.lieAt = how
      model.wasUpstreamBroken ||= how !== undefined
    },
  })

const upstreamBreaks = (after: number | undefined): Step =>
  named(after === undefined ? 'the upstream ends what it begins' : `the upstream breaks off after ${after}`, {
    async run(model, { upstream }) {
      if (after === undefined) delete upstream.breakAfter
      else upstream.breakAfter = after
      model.wasUpstreamBroken ||= after !== undefined
    },
  })

const storeIs = (isDown: boolean): Step =>
  named(`the store is ${isDown ? 'down' : 'well'}`, {
    run: async (_model, { tier }) => {
      tier.isDown = isDown
    },
  })

const anyFile = fc.nat(files.length - 1)
const steps = fc.commands(
  [
    anyFile.map(upload),
    ...Array.from({ length: 5 }, () => anyFile.map(read)),
    fc.boolean().map(restart),
    fc.constant(restart(true)),
    fc.option(fc.constantFrom(-1, 0, 1), { nil: undefined }).map(upstreamLies),
    fc.option(fc.nat(2), { nil: undefined }).map(upstreamBreaks),
    fc.constantFrom(true, false, false).map(storeIs),
  ],
  { maxCommands: 20, size: 'max' },
)

const { CIDGATE_MODEL_RUNS: runs, CIDGATE_MODEL_SEED: seed } = process.env
const usualSeed = 20_261_122

test('every history keeps what was acknowledged, and tells no other bytes', async () => {
  await fc.assert(
    fc.asyncProperty(steps, async (history) => {
      const folder = await tempFolder()
      const tier = scriptedTier('store')
      const upstream = {}
      const real: Real = { folder, tier, upstream, gateway: await start(folder, tier, upstream) }
      const model: Model = { uploaded: new Set(), wasUpstreamBroken: false }
      try {
        await fc.asyncModelRun(() => ({ model, real }), history)
      } finally {
        await real.gateway.close()
        await rm(folder, { recursive: true, force: true })
      }
    }),
    { numRuns: Number(runs ?? 15), seed: Number(seed ?? (runs ? Date.now() : usualSeed)) },
  )
})
