// A process that keeps and removes uploads and publishes the chain until it is killed. It prints each head. On a file system in
// memory it would make a chain of tens of thousands of records without its short pauses.
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { CID } from 'multiformats/cid'
import { createChain } from '../../src/announce/chain.ts'
import { identityOf } from '../../src/announce/identity.ts'
import { keepLeaf, openStore } from './stores.ts'

const store = openStore(process.argv[2] as string)
const chain = createChain({
  store,
  identity: identityOf(Buffer.alloc(32, 7)),
  addresses: ['/dns/gw.example/tcp/443/https'],
  blocks: false,
  isDenied: () => false,
})
const kept: CID[] = []
const uploads = async () => {
  for (; ; await sleep(2)) {
    kept.push((await keepLeaf(store, randomBytes(16))).cid)
    if (kept.length > 5) await store.remove(kept.splice(Math.floor(Math.random() * kept.length), 1)[0] as CID)
  }
}
void uploads()
for (; ; await sleep(2)) {
  const head = await chain.publish()
  if (head) process.stdout.write(`${head}\n`)
}
