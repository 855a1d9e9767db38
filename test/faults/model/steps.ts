// Steps of a random history: what clients ask, what the operator does with the gateway, and what breaks around it.
import assert from 'node:assert/strict'
import type fc from 'fast-check'
import { multipart, post } from '../../support/adding.ts'
import { ask } from './asking.ts'
import { fileOf, files, hasSome } from './content.ts'
import { denialOf, type Model, mustBeThere, newLife, noteClosed, noteHeld, noteReload, noteSent } from './oracle.ts'
import type { StoreState } from './stores.ts'
import type { Conduct, Ills, Setting, World } from './world.ts'

export type Step = fc.AsyncCommand<Model, World>

/** What is wrong around the gateway now, which outlives it. */
const illsOf = new WeakMap<World, { upstream: boolean; provider: boolean }>()

export const named = (
  name: string,
  run: Step['run'],
  check: (model: Readonly<Model>) => boolean = () => true,
): Step => ({
  check,
  toString: () => name,
  run,
})

export const absent = [404, 502, 503, 504]
const denied = 410

/** True: that is all there is to say of the answer. */
function isDenied(model: Model, index: number, status: number | undefined): boolean {
  const denial = denialOf(model, index)
  if (status === denied) {
    assert.notEqual(denial, 'no', `file ${index} is ${denied}, and nobody took it down`)
    return true
  }
  if (denial === 'yes') assert.equal(status, undefined, `file ${index} was taken down, and is ${status}`)
  return denial === 'yes'
}

export const read = (index: number): Step =>
  named(`read ${index}`, async (model, world) => {
    const { cid, bytes } = fileOf(index)
    const must = mustBeThere(model, world, index)
    const got = await ask(`${world.url}/ipfs/${cid}`, {}, must)
    if (isDenied(model, index, got?.status)) return
    if (must !== 'no') assert.equal(got?.status, 200, `file ${index}: ${got?.body ?? 'cut'}`)
    if (got?.status === 200) {
      assert.ok(got.body.equals(bytes), `file ${index} has other bytes`)
      // A ready answer outlives the memory tier that a reload replaces, and brings nothing into the next one.
      if (!model.memoryChanged && !/detail=responses/.test(String(got.headers['cache-status'])))
        model.inMemory.add(index)
    } else {
      assert.ok(!got || absent.includes(got.status), `file ${index}: ${got?.status}`)
      model.notFound.add(index)
    }
  })

/** Of a length; undefined: there is none. */
function meant(spelled: string, size: number): readonly [from: number, end: number] | undefined {
  const [from = '', to = ''] = spelled.split('-')
  if (from === '') return Number(to) === 0 ? undefined : [Math.max(0, size - Number(to)), size]
  if (Number(from) >= size) return undefined
  return [Number(from), to === '' ? size : Math.min(size, Number(to) + 1)]
}

export const readRange = (index: number, spelled: string): Step =>
  named(`read ${index} bytes=${spelled}`, async (model, world) => {
    const { cid, bytes } = fileOf(index)
    const must = mustBeThere(model, world, index)
    const got = await ask(`${world.url}/ipfs/${cid}`, { range: `bytes=${spelled}` }, must)
    if (isDenied(model, index, got?.status)) return
    const range = meant(spelled, bytes.length)
    if (must !== 'no')
      assert.equal(got?.status, range ? 206 : 416, `file ${index} bytes=${spelled}: ${got?.body ?? 'cut'}`)
    if (got?.status === 206) {
      assert.ok(range, `file ${index} has no bytes=${spelled}`)
      const [from, end] = range
      assert.equal(got.headers['content-range'], `bytes ${from}-${end - 1}/${bytes.length}`)
      assert.ok(got.body.equals(bytes.subarray(from, end)), `file ${index} bytes=${spelled} are others`)
    } else if (got?.status !== 416) {
      assert.ok(!got || absent.includes(got.status), `file ${index} bytes=${spelled}: ${got?.status}`)
      model.notFound.add(index)
    }
  })

function send(model: Model, world: World, index: number) {
  if (denialOf(model, index) !== 'yes') noteSent(model, index)
  return post(`${world.url}/add`, multipart([{ fileName: 'a', body: Buffer.from(fileOf(index).bytes) }]))
}

function noteUpload(model: Model, index: number, { status, json, body }: Awaited<ReturnType<typeof send>>): void {
  if (isDenied(model, index, status)) return
  const canFail = model.setting.confirm === 2 && model.providerBroke
  assert.ok(status === 200 || (canFail && status >= 502), `upload ${index}: ${status} ${body}`)
  if (status !== 200) return
  assert.equal((json['cids'] as string[])[0], `/ipfs/${fileOf(index).cid}`)
  noteHeld(model, index)
}

export const upload = (index: number): Step =>
  named(`upload ${index}`, async (model, world) => noteUpload(model, index, await send(model, world, index)))

const noteNewLife = (model: Model, world: World): void =>
  newLife(model, illsOf.get(world) ?? { upstream: false, provider: false })

/** Killed so far into an upload: only what was answered by then counts. */
export const killDuringUpload = (index: number, steps: number): Step =>
  named(`kill ${steps} steps after an upload of ${index} began`, async (model, world) => {
    const sending = send(model, world, index).catch(() => undefined)
    await world.moment(steps)
    await world.kill()
    const answer = await sending
    noteNewLife(model, world)
    if (answer?.status === 200) noteUpload(model, index, answer)
  })

export const reloadDuringUpload = (index: number, setting: Setting): Step =>
  named(`reload ${JSON.stringify(setting)} while ${index} is uploaded`, async (model, world) => {
    const sending = send(model, world, index)
    await world.reload(setting)
    const before = model.setting
    noteReload(model, setting)
    if (before.confirm > setting.confirm) model.setting = { ...setting, confirm: before.confirm }
    noteUpload(model, index, await sending)
    model.setting = setting
  })

export const reload = (setting: Setting): Step =>
  named(`reload ${JSON.stringify(setting)}`, async (model, world) => {
    await world.reload(setting)
    noteReload(model, setting)
  })

export const restart: Step = named('restart', async (model, world) => {
  await world.restart()
  noteClosed(model)
  noteNewLife(model, world)
})

export async function killNow(model: Model, world: World): Promise<void> {
  await world.kill()
  noteNewLife(model, world)
}

export const kill: Step = named('kill', killNow)

export const storeRots: Step = named('all that the store holds rots', async (model, { store }) => {
  for (const [index, file] of files.entries()) {
    // What is on its way now may come as it should be, or may have come.
    if (!hasSome(store.held, file) && !model.owed.has(index)) continue
    model.rotted.add(index)
    model.owed.delete(index)
  }
  store.rot()
})

export async function storeBecomes(state: StoreState, model: Model, { store }: World): Promise<void> {
  await store.become(state)
  if (state === 'well') model.storeWasDown ||= model.storeIsDown
  model.storeIsDown = state !== 'well'
}

export const storeIs = (state: StoreState): Step =>
  named(`the store ${state === 'well' ? 'is well' : state}`, (model, world) => storeBecomes(state, model, world))

const noteIll = (world: World, what: 'upstream' | 'provider', isIll: boolean): void =>
  void illsOf.set(world, { upstream: false, provider: false, ...illsOf.get(world), [what]: isIll })

export const upstreamIs = (ills: Ills): Step => {
  const said = Object.entries(ills).map(([what, where]) => `${what} ${where}`)
  return named(`the upstream ${said.length > 0 ? said.join(', ') : 'is well'}`, async (model, world) => {
    world.upstreamIs(ills)
    noteIll(world, 'upstream', said.length > 0)
    model.upstreamBroke ||= said.length > 0
  })
}

export const providerIs = (conduct: Conduct): Step =>
  named(`the provider ${conduct}`, async (model, world) => {
    world.providerIs(conduct)
    noteIll(world, 'provider', conduct !== 'holds')
    model.providerBroke ||= conduct !== 'holds'
  })
