// A process that accepts uploads as fast as it can, and says the CID of each that was acknowledged: node store-process.ts FOLDER.
// `-CID`: it was deleted, or is about to be.
import { randomBytes, randomInt } from 'node:crypto'
import { writeSync } from 'node:fs'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { createDataFolders } from '../../src/data-folder/folder.ts'
import { joinStore } from '../../src/store/open.ts'
import type { StagedDag, Store } from '../../src/store/store.ts'
import { keep, leavesOf, putFile, putLeaf } from './stores.ts'

const [folder = ''] = process.argv.slice(2)
const most = Number(process.env.STORE_UPLOADS ?? Number.POSITIVE_INFINITY)
/** `1`: nothing is deleted. */
const deletes = process.env['STORE_KEEPS'] !== '1'
const say = (line: string): void => void writeSync(1, `${line}\n`)

const { store } = joinStore(createDataFolders().enter(folder), { clock: systemClock, log: silentLog })
let left = most

function one(into: Store): Promise<StagedDag> {
  const kind = randomInt(10)
  if (kind === 0) return keep(into, (dag) => putFile(dag, leavesOf(1 + randomInt(4), 60_000)))
  if (kind === 1) return keep(into, (dag) => putFile(dag, leavesOf(200, 500)))
  // More blocks than one commit takes.
  if (kind === 2 && randomInt(3) === 0) return keep(into, (dag) => putFile(dag, leavesOf(6000, 30)))
  return keep(into, (dag) => putLeaf(dag, randomBytes(20 + randomInt(3000))))
}

async function work(): Promise<void> {
  const own: StagedDag[] = []
  while (left-- > 0) {
    const staged = await one(store)
    say(String(staged.cid))
    own.push(staged)
    const old = deletes && randomInt(4) === 0 ? own.shift() : undefined
    if (!old) continue
    say(`-${old.cid}`)
    await store.remove(old.cid)
  }
}

await store.ready
say('ready')
await Promise.all([work(), work(), work(), work()])
say('done')
