// The model of what must be readable: what was acknowledged and not deleted, whatever happened since; what memory, the disk or the store
// has; and what an upstream has that was never ill in the life of this gateway. What must not be: what was taken down. No answer has
// other bytes. All else may be there or not.
import { fileOf, hasLargeLeaves, isRemote, isWhole } from './content.ts'
import { firstSetting, type Setting, type World } from './world.ts'

/** `maybe`: a takedown began, and no answer said that it was written. */
export type Denial = 'no' | 'maybe' | 'yes'

export type Model = {
  readonly isShared: boolean
  setting: Setting
  /** Acknowledged, and nobody asked to delete it since. */
  readonly uploaded: Set<number>
  /** Read whole since the memory was made. */
  readonly inMemory: Set<number>
  /** By the folder of the disk tier: what it had when a gateway was closed. */
  readonly onDisk: Map<string, Set<number>>
  /** What was in memory before is not brought to another disk tier. */
  diskChanged: boolean
  /** A block that waits to be written is read from there, and brought into no new memory. */
  memoryChanged: boolean
  /** Not found in the last seconds, which the gateway may remember. */
  readonly notFound: Set<number>
  upstreamBroke: boolean
  providerBroke: boolean
  storeIsDown: boolean
  /** It may be some seconds until the gateways use it again. */
  storeWasDown: boolean
  readonly denied: Map<number, Denial>
  /** An answer said that no provider has it any more, and nothing was uploaded since. */
  readonly unpinned: Set<number>
  /** Acknowledged, so that the store gets it in time. */
  readonly owed: Set<number>
  /** A gateway cannot know that the store lost it: its key is there. */
  readonly rotted: Set<number>
  /** An answer said that no tier has it either. */
  readonly purged: Set<number>
  readonly reader: { readonly inMemory: Set<number>; readonly notFound: Set<number> }
}

export const emptyModel = (isShared: boolean): Model => ({
  isShared,
  setting: firstSetting,
  uploaded: new Set(),
  inMemory: new Set(),
  onDisk: new Map(),
  diskChanged: false,
  memoryChanged: false,
  notFound: new Set(),
  upstreamBroke: false,
  providerBroke: false,
  storeIsDown: false,
  storeWasDown: false,
  denied: new Map(),
  unpinned: new Set(),
  owed: new Set(),
  rotted: new Set(),
  purged: new Set(),
  reader: { inMemory: new Set(), notFound: new Set() },
})

export const denialOf = ({ denied }: Model, index: number): Denial => denied.get(index) ?? 'no'

/** `soon`: by the store alone, which may take seconds when it was away, or when this machine is busy. */
export type Must = 'at once' | 'soon' | 'no'

export function mustBeThere(model: Model, world: World, index: number): Must {
  if (denialOf(model, index) !== 'no') return 'no'
  if (model.uploaded.has(index) || model.inMemory.has(index)) return 'at once'
  if (model.setting.disk !== 'none' && model.onDisk.get(model.setting.disk)?.has(index)) return 'at once'
  if (isRemote(index) && !model.upstreamBroke) return 'at once'
  return model.notFound.has(index) ? 'no' : byStore(model, world, index)
}

export function mustBeAtReader(model: Model, world: World, index: number): Must {
  if (model.reader.inMemory.has(index)) return 'at once'
  return model.reader.notFound.has(index) ? 'no' : byStore(model, world, index)
}

function byStore(model: Model, world: World, index: number): Must {
  if (model.storeIsDown || !isWhole(world.store.held, fileOf(index))) return 'no'
  return model.storeWasDown || world.store.isRemote ? 'soon' : 'at once'
}

/** What is wrong with the world stays so, and the new gateway is to find it out. */
export function newLife(model: Model, ills: { readonly upstream: boolean; readonly provider: boolean }): void {
  model.inMemory.clear()
  model.notFound.clear()
  model.diskChanged = false
  model.memoryChanged = false
  model.upstreamBroke = ills.upstream
  model.providerBroke = ills.provider
}

export function noteReload(model: Model, setting: Setting): void {
  if (setting.memory !== model.setting.memory) model.inMemory.clear()
  // Where there is a disk, large leaves lie on it and not in memory: they stay in the folder that is no tier any more.
  if (setting.disk !== model.setting.disk && model.setting.disk !== 'none')
    for (const index of model.inMemory) if (hasLargeLeaves(index)) model.inMemory.delete(index)
  model.memoryChanged ||= setting.memory !== model.setting.memory
  model.diskChanged ||= setting.disk !== model.setting.disk
  model.setting = setting
}

export function noteClosed(model: Model): void {
  const { disk } = model.setting
  if (disk === 'none' || model.diskChanged) return
  model.onDisk.set(disk, new Set([...(model.onDisk.get(disk) ?? []), ...model.inMemory]))
}

export function noteHeld(model: Model, index: number): void {
  model.uploaded.add(index)
  model.denied.delete(index)
  if (!model.rotted.has(index)) model.owed.add(index)
}

/** It may have begun, whatever became of it. */
export function noteSent(model: Model, index: number): void {
  model.unpinned.delete(index)
  model.purged.delete(index)
}

/** Nothing promises it any more: no cache has to keep it. */
export function noteLeft(model: Model, index: number): void {
  for (const some of [model.uploaded, model.owed, model.inMemory, ...model.onDisk.values()]) some.delete(index)
}
