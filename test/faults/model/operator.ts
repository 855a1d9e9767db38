// Steps of a random history that take something back: the operator deletes a pin, or takes a file down, and looks at the pins. What
// an answer said stays so: what was deleted comes back by no start, and what was taken down is no more to be had.
import assert from 'node:assert/strict'
import { type Told, tell } from './asking.ts'
import { fileOf, files, hasSome, isWhole } from './content.ts'
import { denialOf, type Model, noteLeft } from './oracle.ts'
import { killNow, named, type Step } from './steps.ts'
import type { World } from './world.ts'

const cidOf = (index: number): string => fileOf(index).cid.toString()

const isDeniedNow = (model: Model, index: number): boolean => denialOf(model, index) === 'yes'

type Outcomes = { readonly providers?: readonly { readonly provider: string; readonly outcome: string }[] }

/** The pins of this machine lie on a disk that is well. */
function isDeletedHere(index: number, { providers = [] }: Outcomes): void {
  const outcome = providers.find(({ provider }) => provider === 'local')?.outcome
  if (outcome !== undefined) assert.match(outcome, /^(removed|missing)$/, `the pin of ${index} on this machine`)
}

function noteDeleted(model: Model, index: number, told: Told | undefined, wasUploaded: boolean): void {
  if (told?.status === 404) assert.ok(!wasUploaded, `file ${index} was acknowledged, and its pin is unknown`)
  else if (told) assert.ok(told.status === 200 || told.status === 409, `the pin of ${index}: ${told.status}`)
  isDeletedHere(index, (told?.json ?? {}) as Outcomes)
  if (told?.status === 404 || told?.json['isGone'] === true) model.unpinned.add(index)
}

const remove = (world: World, index: number) => tell('DELETE', `${world.admin}/pins/${cidOf(index)}`)

export const deletePin = (index: number): Step =>
  named(`delete the pin of ${index}`, async (model, world) => {
    const wasUploaded = model.uploaded.has(index)
    noteLeft(model, index)
    const told = await remove(world, index)
    assert.ok(told, `the request to delete ${index} was cut`)
    noteDeleted(model, index, told, wasUploaded)
  })

export const killDuringDelete = (index: number, steps: number): Step =>
  named(`kill ${steps} steps after the pin of ${index} began to be deleted`, async (model, world) => {
    const wasUploaded = model.uploaded.has(index)
    noteLeft(model, index)
    const telling = remove(world, index)
    await world.moment(steps)
    await killNow(model, world)
    noteDeleted(model, index, await telling, wasUploaded)
  })

const deny = (world: World, index: number) => tell('POST', `${world.admin}/deny/${cidOf(index)}`)

/** Leaves whose root the store has lost, by a kill or by rot, are found by no takedown: nothing says what they are part of. */
const canBePurged = ({ store }: World, index: number): boolean =>
  isWhole(store.held, fileOf(index)) || !hasSome(store.held, fileOf(index))

function noteDenied(model: Model, index: number, told: Told | undefined, canPurge: boolean): void {
  if (!told) {
    if (denialOf(model, index) === 'no') model.denied.set(index, 'maybe')
    return
  }
  assert.ok(
    told.status === 200 || told.status === 409,
    `taking ${index} down: ${told.status} ${JSON.stringify(told.json)}`,
  )
  model.denied.set(index, 'yes')
  isDeletedHere(index, (told.json['pins'] ?? {}) as Outcomes)
  const isStoreWell = !model.storeIsDown && !model.storeWasDown && model.rotted.size === 0
  if (isStoreWell && told.status === 200)
    assert.deepEqual(told.json['failures'], [], `what could not be purged of ${index}, and the store was always well`)
  if (told.json['isGone'] !== true) return
  model.unpinned.add(index)
  if (canPurge) model.purged.add(index)
}

export const takeDown = (index: number): Step =>
  named(`take ${index} down`, async (model, world) => {
    noteLeft(model, index)
    const canPurge = canBePurged(world, index)
    const told = await deny(world, index)
    assert.ok(told, `the request to take ${index} down was cut`)
    noteDenied(model, index, told, canPurge)
  })

export const killDuringTakedown = (index: number, steps: number): Step =>
  named(`kill ${steps} steps after ${index} began to be taken down`, async (model, world) => {
    noteLeft(model, index)
    const canPurge = canBePurged(world, index)
    const telling = deny(world, index)
    await world.moment(steps)
    await killNow(model, world)
    noteDenied(model, index, await telling, canPurge)
  })

type Listed = { readonly providers: Readonly<Record<string, { readonly state: string }>> }

/** Each file by the admin address, and in the provider and the store themselves. */
export async function lookAtPins(model: Model, world: World): Promise<void> {
  for (const [index, file] of files.entries()) {
    const told = await tell('GET', `${world.admin}/pins/${cidOf(index)}`)
    const states = Object.values((told?.json as Listed | undefined)?.providers ?? {}).map(({ state }) => state)
    if (model.uploaded.has(index)) {
      assert.equal(told?.status, 200, `file ${index} was acknowledged, and is no pin`)
      assert.ok(states.includes('pinned'), `file ${index} was acknowledged, and is held by none: ${states}`)
    }
    if (model.unpinned.has(index)) {
      const isPinned = states.some((state) => state === 'pinned' || state === 'pending')
      assert.ok(!isPinned, `file ${index} was deleted at every provider, and is pinned: ${states}`)
      assert.ok(!world.providerHolds(cidOf(index)), `file ${index} was deleted, and the provider has it`)
    }
    if (model.purged.has(index) && isDeniedNow(model, index))
      assert.ok(!hasSome(world.store.held, file), `file ${index} was taken down, and the store has some of it`)
  }
}

export const pins: Step = named('look at the pins', lookAtPins)
