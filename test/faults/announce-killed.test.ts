// Fault: kill -9 at random moments while the chain is published. Every head that was told stays in the chain, without a gap, and at
// the end it names what is kept. CIDGATE_KILLS sets how often.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { CID } from 'multiformats/cid'
import { noEntries, readAdvertisement, readEntries } from '../../src/announce/advertisement.ts'
import { type Chain, createChain } from '../../src/announce/chain.ts'
import { identityOf } from '../../src/announce/identity.ts'
import { openStore } from '../support/stores.ts'

const kills = Number(process.env['CIDGATE_KILLS'] ?? 5)
const identity = identityOf(Buffer.alloc(32, 7))

async function walk(chain: Chain): Promise<{ readonly heads: Set<string>; readonly known: Set<string> }> {
  const heads = new Set<string>()
  const ads = []
  for (let at = await chain.head(); at; at = ads[0]?.PreviousID) {
    heads.add(at.toString())
    ads.unshift(readAdvertisement((await chain.block(at.toString())) ?? assert.fail(`a gap at ${at}`)))
  }
  const contexts = new Map<string, Set<string>>()
  const used = new Set<string>()
  for (const { ContextID, Entries, IsRm } of ads) {
    const context = Buffer.from(ContextID).toString('hex')
    if (IsRm) assert.ok(contexts.delete(context))
    else {
      assert.ok(!used.has(context), 'a context came back')
      const entries = new Set<string>()
      for (let next: CID | undefined = Entries.equals(noEntries) ? undefined : Entries; next; ) {
        const bytes = await chain.block(next.toString())
        if (!bytes) break
        const chunk = readEntries(bytes)
        for (const one of chunk.Entries) entries.add(Buffer.from(one).toString('hex'))
        next = chunk.Next
      }
      contexts.set(context, entries)
    }
    used.add(context)
  }
  return { heads, known: new Set([...contexts.values()].flatMap((entries) => [...entries])) }
}

it(`${kills} kill -9 while publishing → no gap, no fork, no context again`, { timeout: 600_000 }, async () => {
  const data = await mkdtemp(join(tmpdir(), 'cidgate-announce-'))
  const server = fileURLToPath(new URL('../support/announce-server.ts', import.meta.url))
  const told: string[] = []
  try {
    for (let killed = 0; killed < kills; killed++) {
      const child = spawn(process.execPath, [server, data], { stdio: ['ignore', 'pipe', 'inherit'] })
      let rest = ''
      child.stdout.on('data', (chunk: Buffer) => {
        const lines = (rest + chunk).split('\n')
        rest = lines.pop() ?? ''
        told.push(...lines)
      })
      await once(child.stdout, 'data')
      await sleep(Math.random() * 400)
      child.kill('SIGKILL')
      await once(child, 'close')
    }
    const store = openStore(data)
    try {
      const chain = createChain({
        ...{ store, identity, addresses: ['/dns/gw.example/tcp/443/https'], blocks: false },
        isDenied: () => false,
      })
      const { heads } = await walk(chain)
      for (const head of told) assert.ok(heads.has(head), `${head} was told and is not in the chain`)
      await chain.publish()
      const { entries } = await store.ledger.page({ limit: 100_000 })
      const held = entries.map(({ cid }) => Buffer.from(cid.multihash.bytes).toString('hex'))
      assert.deepEqual([...(await walk(chain)).known].sort(), held.sort())
      assert.ok(new Set(told).size > 1, 'something was published between the kills')
    } finally {
      await store.close()
    }
  } finally {
    await rm(data, { recursive: true, force: true })
  }
})
