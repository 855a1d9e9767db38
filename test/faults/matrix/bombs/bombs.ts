// The rows for what may stop the event loop: honest content that is large, and content that is made to be more work than it has bytes.
import { setTimeout as sleep } from 'node:timers/promises'
import type { ContentName } from './content.ts'
import { type Attack, reading, waitingInVain } from './readers.ts'

export type Bomb = {
  readonly name: string
  readonly content: ContentName
  readonly attack: Attack
  /** What the answers are, in words. */
  readonly promised: string
  /** Options of the file, beside those of the row. */
  readonly responses?: { readonly types: 'web' }
  /** Read once before, so that all of it is at hand. */
  readonly warm?: string
  /** Most that a hot answer waits, for 99 of 100. */
  readonly hotMs?: number
  /** Most that the loop works in one turn. */
  readonly workMs?: number
}

const web = { types: 'web' } as const
const page = 'text/html'
const deadlineMs = 5000

export const bombs: readonly Bomb[] = [
  {
    name: 'nothing, for comparison',
    content: 'nothing',
    promised: '',
    attack: async () => {
      await sleep(5000)
      return { measured: '', broken: [] }
    },
  },
  {
    name: 'a folder of 20,000 files of 1 KB as TAR, from memory',
    content: 'folder',
    promised: 'complete',
    warm: '?format=tar',
    attack: reading({ query: '?format=tar', right: ['complete', 'left'], lastsMs: 20_000 }),
  },
  {
    name: 'the same as CAR',
    content: 'folder',
    promised: 'complete',
    warm: '?format=car',
    attack: reading({ query: '?format=car', right: ['complete', 'left'], lastsMs: 20_000 }),
  },
  {
    name: '8 MiB of JSON, twelve of them, once each',
    content: 'json',
    promised: 'complete',
    attack: reading({ right: ['complete'], isOnce: true, lastsMs: 60_000 }),
  },
  {
    name: 'a file of 120,000 leaves of one byte, from memory',
    content: 'tinyLeaves',
    promised: 'complete',
    warm: '',
    attack: reading({ right: ['complete', 'left'] }),
  },
  {
    name: 'a listing of 36,000 links in one block',
    content: 'flat',
    promised: 'complete',
    attack: reading({ right: ['complete', 'left'] }),
  },
  {
    name: 'the same as a page',
    content: 'flat',
    promised: 'complete',
    responses: web,
    attack: reading({ query: '/', accept: page, right: ['complete', 'left'] }),
  },
  {
    name: 'a directory of 180,000 links in one block, as CAR',
    content: 'manyLinks',
    promised: 'complete',
    attack: reading({ query: '?format=car', right: ['complete', 'left'], lastsMs: 15_000 }),
  },
  {
    name: 'the same as TAR',
    content: 'manyLinks',
    promised: 'complete',
    attack: reading({ query: '?format=tar', right: ['complete', 'left'], lastsMs: 15_000 }),
  },
  {
    name: 'the same, a name that it does not have',
    content: 'manyLinks',
    promised: '404',
    attack: reading({ query: '/nowhere', right: [404, 'left'] }),
  },
  {
    name: 'a file of 170,000 leaves in the links of one block',
    content: 'inlineLeaves',
    promised: '422, since its blocks are too many for its bytes',
    attack: reading({ right: [422, 'left'] }),
  },
  {
    name: 'ten bytes of the same as CAR',
    content: 'inlineLeaves',
    promised: 'complete',
    attack: reading({ query: '?format=car&dag-scope=entity&entity-bytes=0:9', right: ['complete', 'left'] }),
  },
  {
    name: 'a page of 4,900 names of 380 characters',
    content: 'longNames',
    promised: 'complete',
    responses: web,
    attack: reading({ query: '/', accept: page, right: ['complete', 'left'] }),
  },
  {
    name: '36,000 names of one leaf as CAR with `dups=y`',
    content: 'sameLeaf',
    promised: 'complete',
    attack: reading({ query: '?format=car&car-dups=y', right: ['complete', 'left'], lastsMs: 20_000 }),
  },
  {
    name: '900 directories below 30 that have 44,000 names each, as CAR',
    content: 'knownSiblings',
    promised: 'complete, or until the client leaves',
    attack: reading({ query: '?format=car', right: ['left', 'complete'], lastsMs: 15_000 }),
  },
  {
    name: '30 shards in each other with 150,000 entries each, as a listing',
    content: 'entriesBehindShards',
    promised: 'cut behind a million of them, or until the client leaves',
    attack: reading({ right: ['left', 'cut'], lastsMs: 15_000 }),
  },
  {
    name: '2 MiB of dag-cbor as dag-json',
    content: 'document',
    promised: '406, since nothing is converted',
    attack: reading({ query: '?format=dag-json', right: [406, 'left'] }),
  },
  {
    name: 'the same as a page',
    content: 'document',
    promised: 'complete',
    responses: web,
    attack: reading({ accept: page, right: ['complete', 'left'] }),
  },
  {
    name: '31 blocks that stand for 100^30 files, as TAR',
    content: 'unfolding',
    promised: 'until the client leaves',
    attack: reading({ query: '?format=tar', right: ['left'] }),
  },
  {
    name: 'the same as CAR with `dups=y`',
    content: 'unfolding',
    promised: 'until the client leaves',
    attack: reading({ query: '?format=car&car-dups=y', right: ['left'] }),
  },
  {
    name: 'a listing of 16,384 empty shards',
    content: 'emptyShards',
    promised: 'complete, or 503 at its deadline',
    warm: '',
    attack: reading({ right: ['left', 'complete', 503] }),
  },
  {
    name: 'a listing of 40,000 empty shards in the links of one block',
    content: 'inlineShards',
    promised: 'complete',
    attack: reading({ right: ['complete', 'left'] }),
  },
  {
    name: 'ten million entries as a listing, read slowly',
    content: 'manyEntries',
    promised: 'cut behind a million of them, or until the client leaves',
    attack: reading({ how: 'slowly', right: ['left', 'cut'], lastsMs: 20_000 }),
  },
  {
    name: 'the same as a page, as fast as it goes',
    content: 'manyEntries',
    promised: 'cut behind a million of them, or until the client leaves',
    responses: web,
    attack: reading({ query: '/', accept: page, right: ['left', 'cut'], lastsMs: 20_000 }),
  },
  {
    name: 'the same as CAR, by clients that leave after 4 MiB',
    content: 'manyEntries',
    promised: 'until the client leaves',
    attack: reading({ query: '?format=car', how: 'leaves', right: ['left'] }),
  },
  {
    name: 'the same as CAR, as fast as it goes',
    content: 'manyEntries',
    promised: 'until the client leaves',
    attack: reading({ query: '?format=car', right: ['left', 'complete'], lastsMs: 20_000 }),
  },
  {
    name: 'ten million entries in shards that repeat, as a listing',
    content: 'repeated',
    promised: '422 at the first shard that repeats',
    attack: reading({ right: [422, 'left'] }),
  },
  {
    name: 'the same as CAR with `dups=y`, read slowly',
    content: 'repeated',
    promised: 'until the client leaves',
    attack: reading({ query: '?format=car&car-dups=y', how: 'slowly', right: ['left'] }),
  },
  {
    name: 'the same, by clients that leave after 4 MiB',
    content: 'repeated',
    promised: 'until the client leaves',
    attack: reading({ query: '?format=car&car-dups=y', how: 'leaves', right: ['left'] }),
  },
  {
    name: '2,000 misses that hang, in one moment',
    content: 'lost',
    promised: '404, or 503 where none of its upstreams had a connection left, within 1.0 s of the deadline',
    hotMs: 100,
    // Node reads a thousand sockets in one turn, hot requests among them: no one piece of that work is long.
    workMs: 150,
    attack: waitingInVain({ deadlineMs, maxBehindMs: 1000 }),
  },
]
