// An upstream without a network, for tests of what retrieval does with upstreams: serves a map of blocks in the order of a
// depth-first walk, counts what it was asked, and misbehaves by script.
import type { CID } from 'multiformats/cid'
import { type DagWant, fromIterable, isBlock, type Upstream } from '../../backends/upstreams/contract.ts'
import { type Block, blockKey } from '../../src/core/cid.ts'
import { Failure } from '../../src/core/failure.ts'
import { linksOf } from '../../src/ipld/block-links.ts'

export type Script = {
  /** Never answers. */
  silent?: boolean
  /** Ends every DAG with a failure after this many blocks. */
  breakAfter?: number
  /** Sends other bytes instead of this block of a DAG (counted from 0), or of any single block for -1. */
  lieAt?: number
  dag?: boolean
  /** Asked for a range, it sends all of it. */
  sendsAll?: boolean
}

export interface ScriptedUpstream extends Upstream {
  /** The answers to `ask`, which a test may replace. */
  block(cid: CID, signal: AbortSignal): Promise<Uint8Array>
  dag(want: DagWant, signal: AbortSignal): AsyncGenerator<Block>
  readonly asked: { blocks: string[]; dags: DagWant[]; sent: number; letGo: number }
  readonly script: Script
}

const absent = (name: string, cid: CID) => new Failure('not-found', `${name} has no ${cid}`, { source: 'upstream' })

const never = (signal: AbortSignal): Promise<never> =>
  new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }))

export function scriptedUpstream(
  name: string,
  blocks: ReadonlyMap<string, Uint8Array>,
  script: Script = {},
): ScriptedUpstream {
  const asked = { blocks: [] as string[], dags: [] as DagWant[], sent: 0, letGo: 0 }

  function* walk(cid: CID): Generator<Block> {
    const bytes = blocks.get(blockKey(cid))
    if (!bytes) throw absent(name, cid)
    yield { cid, bytes }
    for (const link of linksOf({ cid, bytes })) yield* walk(link)
  }

  return {
    name,
    script,
    asked,
    traits: { dag: script.dag ?? true, canBlock: () => true },
    ask(want, answer) {
      const one = async function* (this: ScriptedUpstream, signal: AbortSignal) {
        yield { cid: want.cid, bytes: await this.block(want.cid, signal) }
      }
      return fromIterable((_want, signal) => (isBlock(want) ? one.call(this, signal) : this.dag(want, signal)))(
        want,
        answer,
      )
    },
    async block(cid, signal) {
      asked.blocks.push(cid.toString())
      if (script.silent) return never(signal)
      const bytes = blocks.get(blockKey(cid))
      if (!bytes) throw absent(name, cid)
      return script.lieAt === -1 ? new Uint8Array([1, 2, 3]) : bytes
    },
    async *dag(want, signal) {
      asked.dags.push(want)
      signal.addEventListener('abort', () => asked.letGo++, { once: true })
      if (script.silent) await never(signal)
      let index = 0
      // The range is taken by leaves of equal size, as the fixtures of these tests have them.
      const { from = 0, to = Number.POSITIVE_INFINITY } = script.sendsAll ? {} : (want.range ?? {})
      let offset = 0
      for (const block of walk(want.cid)) {
        signal.throwIfAborted()
        if (index === script.breakAfter) throw new Failure('upstream-error', `${name} was cut`, { source: 'upstream' })
        const isLeaf = block.cid.code === 0x55
        const at = offset
        if (isLeaf) offset += block.bytes.byteLength
        if (isLeaf && (at + block.bytes.byteLength <= from || at > to)) continue
        asked.sent++
        yield index === script.lieAt ? { cid: block.cid, bytes: new Uint8Array(block.bytes.byteLength) } : block
        index++
      }
    },
    probe: async () => ({ usable: true, raw: true, car: true, findings: [], ms: 1 }),
    close: async () => {},
  }
}
