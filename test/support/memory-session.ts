// A session over a map of blocks, for tests of content: no tiers, no upstreams. It writes down what it was asked for.
import type { CID } from 'multiformats/cid'
import { blockKey, isIdentity } from '../../src/core/cid.ts'
import { Failure } from '../../src/core/failure.ts'
import { readNode } from '../../src/ipld/unixfs.ts'
import { type DagWant, Guard, type Session } from '../../src/retrieval/session.ts'
import type { BlockMap } from './fixtures.ts'

export type Asked = { readonly cid: CID; readonly around: DagWant | undefined }

export function memorySession(blocks: BlockMap): Session & { readonly asked: Asked[] } {
  const asked: Asked[] = []
  const guard = new Guard({})
  return {
    visit: guard.visit,
    visitNames: guard.visitNames,
    pass: (cid, rest) => guard.pass(cid, rest),
    asked,
    async get(cid, around) {
      if (isIdentity(cid)) return cid.multihash.digest
      asked.push({ cid, around })
      const bytes = blocks.get(blockKey(cid))
      if (!bytes) throw new Failure('not-found', `nobody has ${cid}`, { source: 'upstream' })
      return bytes
    },
    peek: () => undefined,
    readNode,
    readOnce: readNode,
    has: async (cid) => blocks.has(blockKey(cid)),
    expect() {},
    yieldIfDue: () => undefined,
    begun() {},
    end() {},
  }
}
