// The contract suite of well-behaved upstreams, for the programmable one or a real gateway with the
// content. Reactions to misbehaviour are tested in test/contract/upstreams.test.ts.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { CID } from 'multiformats/cid'
import { type DagWant, firstPiece, toIterable, type Upstream } from '../../backends/upstreams/contract.ts'
import { type Block, blockKey, proves } from '../core/cid.ts'
import { isFailure } from '../core/failure.ts'
import { addCbor, type BlockMap, type Content, deepChunk, makeContent } from './content.ts'

/** An upstream under test, which serves the content given to `make`. */
export type UpstreamUnderTest = {
  readonly upstream: Upstream
  /** The same kind at an address without a listener; undefined if there is none. */
  readonly gone?: Upstream
  /** The key and bytes of its IPNS record; undefined if it serves none. */
  readonly published?: { readonly key: { readonly cid: CID }; readonly record: Uint8Array }
  stop(): Promise<void>
}

/** The bytes of one block, as its upstream sends them. */
export async function blockOf(upstream: Upstream, cid: CID, signal: AbortSignal): Promise<Uint8Array> {
  const want = { cid, segments: [], scope: 'block' } as const
  const block = await firstPiece<Block>((answer) => upstream.ask(want, answer), signal)
  return (block ?? assert.fail(`${upstream.name} ended without ${cid}`)).bytes
}

/** The blocks of a DAG, read on demand. */
export const dagOf = (upstream: Upstream, want: DagWant, signal: AbortSignal): AsyncGenerator<Block> =>
  toIterable((answer) => upstream.ask(want, answer), signal)

const signal = () => new AbortController().signal
const pull = (upstream: Upstream, want: DagWant) => Array.fromAsync(dagOf(upstream, want, signal()))

async function kindOf(work: Promise<unknown>): Promise<string> {
  const error: unknown = await work.then(
    () => assert.fail('it should have failed'),
    (reason: unknown) => reason,
  )
  assert.ok(isFailure(error), `no Failure: ${String(error)}`)
  assert.equal(error.source, 'upstream')
  return error.kind
}

/** A new random document, which no upstream has. */
const nobodys = (): CID => addCbor(new Map(), { nobody: Math.random(), at: Date.now() })

/**
 * Declares the suite with node:test. `make` is called for each case, and returns an upstream that
 * serves every block in `content.blocks`, keyed by `blockKey`.
 */
export function upstreamContract(
  name: string,
  make: (content: Content) => Promise<UpstreamUnderTest>,
  { content: contentOf = makeContent }: { readonly content?: () => Content | Promise<Content> } = {},
): void {
  let content: Promise<Content> | undefined
  const with_ = (run: (source: UpstreamUnderTest, all: Content) => Promise<void>) => async () => {
    content ??= Promise.resolve(contentOf())
    const source = await make(await content)
    try {
      await run(source, await content)
    } finally {
      await source.stop()
    }
  }
  const inOrder = (blocks: BlockMap, blocksOf: readonly { cid: CID; bytes: Uint8Array }[]) => {
    for (const { cid, bytes } of blocksOf) {
      assert.ok(proves(cid, bytes), `not proved: ${cid}`)
      assert.ok(blocks.has(blockKey(cid)), `never heard of: ${cid}`)
    }
    assert.equal(new Set(blocksOf.map(({ cid }) => blockKey(cid))).size, blocksOf.length, 'a block came twice')
  }

  describe(`upstream: ${name}`, () => {
    test(
      'any codec and spelling of a CID → its block',
      with_(async ({ upstream }, { files, directory, hamt, cbor, dagJson }) => {
        const roots = [...Object.values(files).map(({ cid }) => cid), directory, hamt, cbor, dagJson]
        const asked = roots.filter((cid) => upstream.traits.canBlock(cid))
        assert.ok(asked.length >= 2)
        for (const cid of asked) {
          assert.ok(proves(cid, await blockOf(upstream, cid, signal())), String(cid))
          if (cid.version === 0)
            assert.ok(proves(cid, await blockOf(upstream, cid.toV1(), signal())), String(cid.toV1()))
        }
      }),
    )

    test(
      'a missing block is not-found, and soon',
      with_(async ({ upstream }) => {
        const cid = nobodys()
        const began = performance.now()
        assert.equal(await kindOf(blockOf(upstream, cid, signal())), 'not-found')
        // Some upstreams report it; others, such as Kubo, send a CAR that lacks a block or is
        // truncated.
        const blocks = await pull(upstream, { cid, segments: [], scope: 'entity' }).catch((error: unknown) => {
          assert.ok(isFailure(error, 'not-found') || isFailure(error, 'upstream-error'), String(error))
          return []
        })
        assert.deepEqual(blocks, [])
        assert.ok(performance.now() - began < 3000)
      }),
    )

    test(
      'entity, deep or sharded → each block once, verified',
      with_(async ({ upstream }, { blocks, files, directory, hamt, cbor }) => {
        if (!upstream.traits.dag) return
        for (const { cid } of Object.values(files)) {
          const got = await pull(upstream, { cid, segments: [], scope: 'entity' })
          inOrder(blocks, got)
          assert.equal(blockKey((got[0] ?? assert.fail()).cid), blockKey(cid))
        }
        assert.equal((await pull(upstream, { cid: files.deepV0.cid, segments: [], scope: 'entity' })).length, 191 + 3)
        for (const cid of [directory, hamt, cbor])
          inOrder(blocks, await pull(upstream, { cid, segments: [], scope: 'entity' }))
      }),
    )

    test(
      'path with any names → the blocks along it',
      with_(async ({ upstream }, { blocks, names, directory }) => {
        if (!upstream.traits.dag) return
        for (const path of Object.keys(names)) {
          const got = await pull(upstream, { cid: directory, segments: path.split('/'), scope: 'entity' })
          inOrder(blocks, got)
          assert.equal(blockKey((got[0] ?? assert.fail()).cid), blockKey(directory))
          assert.ok(got.length > path.split('/').length, path)
        }
      }),
    )

    test(
      'block, entity, all → the blocks of that scope',
      with_(async ({ upstream }, { directory }) => {
        if (!upstream.traits.dag) return
        const count = async (scope: DagWant['scope']) =>
          (await pull(upstream, { cid: directory, segments: [], scope })).length
        assert.equal(await count('block'), 1)
        assert.equal(await count('entity'), 1)
        assert.equal(await count('all'), 14)
      }),
    )

    test(
      'range → only the blocks in it',
      with_(async ({ upstream }, { blocks, files }) => {
        if (!upstream.traits.dag) return
        const { cid, bytes } = files.deepV0
        const far = bytes.byteLength - deepChunk
        for (const range of [{ from: 0, to: 10 }, { from: 80 * deepChunk, to: 82 * deepChunk }, { from: far }]) {
          const got = await pull(upstream, { cid, segments: [], scope: 'entity', range })
          inOrder(blocks, got)
          assert.ok(got.length >= 2 && got.length <= 8, `${JSON.stringify(range)}: ${got.length} blocks`)
        }
      }),
    )

    test(
      'aborted signal → nothing sent, rejects with its reason',
      with_(async ({ upstream, published }, { files }) => {
        const reason = new Error('enough')
        const isReason = (error: unknown) => error === reason
        const gone = AbortSignal.abort(reason)
        await assert.rejects(blockOf(upstream, files.hello.cid, gone), isReason)
        if (upstream.traits.dag) {
          const want: DagWant = { cid: files.deepV0.cid, segments: [], scope: 'entity' }
          await assert.rejects(Array.fromAsync(dagOf(upstream, want, gone)), isReason)
        }
        if (published) await assert.rejects(upstream.record?.(published.key.cid, gone) ?? assert.fail(), isReason)
      }),
    )

    test(
      'abort during a DAG → ends with its reason',
      with_(async ({ upstream }, { files }) => {
        if (!upstream.traits.dag) return
        const controller = new AbortController()
        const reason = new Error('enough')
        const blocks = dagOf(upstream, { cid: files.deepV0.cid, segments: [], scope: 'entity' }, controller.signal)
        let seen = 0
        await assert.rejects(
          async () => {
            for await (const _ of blocks) if (++seen === 5) controller.abort(reason)
          },
          (error) => error === reason,
        )
        assert.ok(seen < 190, `${seen} blocks after the abort`)
      }),
    )

    test(
      'IPNS record → its bytes, or not found',
      with_(async ({ upstream, published }) => {
        if (!published) return
        const { key, record } = published
        assert.deepEqual(
          Buffer.from(await (upstream.record?.(key.cid, signal()) ?? assert.fail())),
          Buffer.from(record),
        )
      }),
    )

    test(
      'probe → usable; no listener → unusable',
      with_(async ({ upstream, gone }, { files }) => {
        const { usable, raw, findings } = await upstream.probe(signal())
        assert.deepEqual({ usable, raw, findings }, { usable: true, raw: true, findings: [] })
        if (gone) assert.equal(await kindOf(blockOf(gone, files.hello.cid, signal())), 'upstream-error')
      }),
    )
  })
}
