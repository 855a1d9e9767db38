// Steps of a random history with a second gateway that shares the store: it reads what the store has, and what was acknowledged comes
// to the store in time, whatever was killed meanwhile.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { ask } from './asking.ts'
import { fileOf, isWhole } from './content.ts'
import { lookAtPins } from './operator.ts'
import { type Model, mustBeAtReader } from './oracle.ts'
import { absent, named, type Step, storeBecomes } from './steps.ts'
import type { World } from './world.ts'

const isShared = (model: Readonly<Model>): boolean => model.isShared

async function readThere(index: number, model: Model, world: World): Promise<void> {
  const { cid, bytes } = fileOf(index)
  const must = mustBeAtReader(model, world, index)
  const got = await ask(`${world.reader?.url}/ipfs/${cid}`, {}, must)
  if (must !== 'no') assert.equal(got?.status, 200, `file ${index} at the second reader: ${got?.body ?? 'cut'}`)
  if (got?.status === 200) {
    assert.ok(got.body.equals(bytes), `file ${index} has other bytes at the second reader`)
    model.reader.inMemory.add(index)
    return
  }
  assert.ok(!got || absent.includes(got.status), `file ${index} at the second reader: ${got?.status}`)
  model.reader.notFound.add(index)
}

export const readAtReader = (index: number): Step =>
  named(`read ${index} at the second reader`, (model, world) => readThere(index, model, world), isShared)

async function renew(model: Model, world: World): Promise<void> {
  await world.reader?.renew()
  model.reader.inMemory.clear()
  model.reader.notFound.clear()
}

export const renewReader: Step = named('the second reader starts anew', renew, isShared)

/** A minute: tries that failed are repeated with a back-off. */
const settledMs = 60_000

/** The store is well again: it gets all that was acknowledged, and a second reader with nothing in memory has it from there. */
export async function settle(model: Model, world: World): Promise<void> {
  await storeBecomes('well', model, world)
  const until = performance.now() + settledMs
  for (const index of model.owed) {
    while (!isWhole(world.store.held, fileOf(index))) {
      assert.ok(performance.now() < until, `file ${index} was acknowledged, and does not come to the store`)
      await sleep(5)
    }
  }
  await renew(model, world)
  for (const index of model.owed) await readThere(index, model, world)
  await lookAtPins(model, world)
}

export const settled: Step = named('the store is well, and gets all that was acknowledged', settle, isShared)
