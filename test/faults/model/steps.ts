// The steps of a random history, and the model of what must be readable: what was acknowledged, whatever happened since; what memory, the
// disk or the store has; and what an upstream has that was never ill in the life of this gateway. No answer has other bytes.
import assert from 'node:assert/strict'
import { get as httpGet, type IncomingHttpHeaders } from 'node:http'
import { setImmediate } from 'node:timers/promises'
import fc from 'fast-check'
import { multipart, post } from '../../support/adding.ts'
import type { FileFixture } from '../../support/fixtures.ts'
import type { Behaviour } from '../../support/scripted-provider.ts'
import { createWorld, files, firstSetting, isRemote, type Setting, type World } from './world.ts'

type Model = {
  setting: Setting
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
}
type Step = fc.AsyncCommand<Model, World>

const fileOf = (index: number): FileFixture => files[index] as FileFixture

const named = (name: string, run: Step['run']): Step => ({ check: () => true, toString: () => name, run })

function mustBeThere(model: Model, world: World, index: number): boolean {
  if (model.uploaded.has(index) || model.inMemory.has(index)) return true
  if (model.setting.disk !== 'none' && model.onDisk.get(model.setting.disk)?.has(index)) return true
  if (isRemote(index) && !model.upstreamBroke) return true
  return !model.storeIsDown && !model.notFound.has(index) && world.storeHas(index)
}

type Answer = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: Buffer }

/** Undefined: cut, or given up. What need not be there is not waited for to the deadline. */
function ask(url: string, headers: Record<string, string>, isPatient: boolean): Promise<Answer | undefined> {
  return new Promise((resolve) => {
    const signal = isPatient ? undefined : AbortSignal.timeout(50)
    const request = httpGet(url, { agent: false, headers, ...(signal && { signal }) }, (response) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', () => resolve(undefined))
      response.on('end', () => {
        const { statusCode: status = 0, headers: got, complete } = response
        resolve(complete ? { status, headers: got, body: Buffer.concat(pieces) } : undefined)
      })
    })
    request.on('error', () => resolve(undefined))
  })
}

const absent = [404, 502, 503, 504]

const read = (index: number): Step =>
  named(`read ${index}`, async (model, world) => {
    const { cid, bytes } = fileOf(index)
    const isThere = mustBeThere(model, world, index)
    const got = await ask(`${world.url}/ipfs/${cid}`, {}, isThere)
    if (isThere) assert.equal(got?.status, 200, `file ${index}: ${got?.body ?? 'cut'}`)
    if (got?.status === 200) {
      assert.ok(got.body.equals(bytes), `file ${index} has other bytes`)
      // A ready answer outlives the memory tier that a reload replaces, and brings nothing into the next one.
      if (!model.memoryChanged && !/detail=hot/.test(String(got.headers['cache-status']))) model.inMemory.add(index)
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

const readRange = (index: number, spelled: string): Step =>
  named(`read ${index} bytes=${spelled}`, async (model, world) => {
    const { cid, bytes } = fileOf(index)
    const isThere = mustBeThere(model, world, index)
    const got = await ask(`${world.url}/ipfs/${cid}`, { range: `bytes=${spelled}` }, isThere)
    const range = meant(spelled, bytes.length)
    if (isThere) assert.equal(got?.status, range ? 206 : 416, `file ${index} bytes=${spelled}: ${got?.body ?? 'cut'}`)
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

const send = (world: World, index: number) =>
  post(`${world.url}/add`, multipart([{ fileName: 'a', body: Buffer.from(fileOf(index).bytes) }]))

function noteUpload(model: Model, index: number, { status, json, body }: Awaited<ReturnType<typeof send>>): void {
  const canFail = model.setting.confirm === 2 && model.providerBroke
  assert.ok(status === 200 || (canFail && status >= 502), `upload ${index}: ${status} ${body}`)
  if (status !== 200) return
  assert.equal((json['cids'] as string[])[0], `/ipfs/${fileOf(index).cid}`)
  model.uploaded.add(index)
}

const upload = (index: number): Step =>
  named(`upload ${index}`, async (model, world) => noteUpload(model, index, await send(world, index)))

/** Killed so many turns of the event loop after an upload began: only what was answered by then counts. */
const killDuringUpload = (index: number, turns: number): Step =>
  named(`kill ${turns} turns after an upload of ${index} began`, async (model, world) => {
    const sending = send(world, index).catch(() => undefined)
    for (let turn = 0; turn < turns; turn++) await setImmediate()
    await world.kill()
    const answer = await sending
    newLife(model, world)
    if (answer?.status === 200) noteUpload(model, index, answer)
  })

const reloadDuringUpload = (index: number, setting: Setting): Step =>
  named(`reload ${JSON.stringify(setting)} while ${index} is uploaded`, async (model, world) => {
    const sending = send(world, index)
    await world.reload(setting)
    const before = model.setting
    noteReload(model, setting)
    if (before.confirm > setting.confirm) model.setting = { ...setting, confirm: before.confirm }
    noteUpload(model, index, await sending)
    model.setting = setting
  })

/** What is wrong with the world stays so, and the new gateway is to find it out. */
function newLife(model: Model, { upstream, provider }: World): void {
  model.inMemory.clear()
  model.notFound.clear()
  model.diskChanged = false
  model.memoryChanged = false
  model.upstreamBroke = upstream.lieAt !== undefined || upstream.breakAfter !== undefined
  model.providerBroke = provider.behaviour !== 'holds'
}

function noteReload(model: Model, setting: Setting): void {
  if (setting.memory !== model.setting.memory) model.inMemory.clear()
  model.memoryChanged ||= setting.memory !== model.setting.memory
  model.diskChanged ||= setting.disk !== model.setting.disk
  model.setting = setting
}

const reload = (setting: Setting): Step =>
  named(`reload ${JSON.stringify(setting)}`, async (model, world) => {
    await world.reload(setting)
    noteReload(model, setting)
  })

const restart: Step = named('restart', async (model, world) => {
  await world.restart()
  const { disk } = model.setting
  const before = model.onDisk.get(disk) ?? []
  if (disk !== 'none' && !model.diskChanged) model.onDisk.set(disk, new Set([...before, ...model.inMemory]))
  newLife(model, world)
})

const kill: Step = named('kill', async (model, world) => {
  await world.kill()
  newLife(model, world)
})

// The same each time: rotten twice is not well again.
const rotten = (bytes: Uint8Array): Uint8Array => Uint8Array.from(bytes).fill(0, bytes.byteLength >> 1)

const storeRots: Step = named('all that the store holds rots', async (_model, { store }) => {
  for (const [key, bytes] of store.held) store.held.set(key, rotten(bytes))
})

const storeIs = (isDown: boolean): Step =>
  named(`the store is ${isDown ? 'down' : 'well'}`, async (model, { store }) => {
    store.isDown = isDown
    model.storeIsDown = isDown
  })

const upstreamLies = (how: number | undefined): Step =>
  named(
    how === undefined ? 'the upstream says the truth' : `the upstream lies at ${how}`,
    async (model, { upstream }) => {
      if (how === undefined) delete upstream.lieAt
      else upstream.lieAt = how
      model.upstreamBroke ||= how !== undefined
    },
  )

const upstreamBreaks = (after: number | undefined): Step =>
  named(
    after === undefined ? 'the upstream ends what it begins' : `the upstream breaks off after ${after}`,
    async (model, { upstream }) => {
      if (after === undefined) delete upstream.breakAfter
      else upstream.breakAfter = after
      model.upstreamBroke ||= after !== undefined
    },
  )

const providerIs = (behaviour: Behaviour): Step =>
  named(`the provider ${behaviour}`, async (model, { provider }) => {
    provider.behaviour = behaviour
    model.providerBroke ||= behaviour !== 'holds'
  })

const anyFile = fc.nat(files.length - 1)
const anySetting: fc.Arbitrary<Setting> = fc.record({
  memory: fc.constantFrom('16MiB', '8MiB'),
  disk: fc.constantFrom('cache', 'cache', 'other', 'none'),
  confirm: fc.constantFrom(1, 2),
})
/** At the edges of the blocks, and anywhere. */
const anyPlace = fc.oneof(
  fc.constantFrom(0, 1, 999, 1000, 4999, 1_048_575, 1_048_576, 1_299_999, 1_300_000),
  fc.nat(1_400_000),
)
const anyRange = fc.oneof(
  fc.tuple(anyPlace, anyPlace).map(([one, other]) => `${Math.min(one, other)}-${Math.max(one, other)}`),
  anyPlace.map((from) => `${from}-`),
  anyPlace.map((last) => `-${last}`),
)
const often = <Value>(times: number, arbitrary: fc.Arbitrary<Value>) => Array.from({ length: times }, () => arbitrary)

const steps = fc.commands(
  [
    ...often(2, anyFile.map(upload)),
    ...often(4, anyFile.map(read)),
    ...often(
      3,
      fc.tuple(anyFile, anyRange).map(([index, range]) => readRange(index, range)),
    ),
    fc.constant(restart),
    fc.constant(kill),
    fc.tuple(anyFile, fc.nat(60)).map(([index, turns]) => killDuringUpload(index, turns)),
    ...often(2, anySetting.map(reload)),
    fc.tuple(anyFile, anySetting).map(([index, setting]) => reloadDuringUpload(index, setting)),
    fc.constant(storeRots),
    fc.constantFrom(true, false, false).map(storeIs),
    fc.option(fc.constantFrom(-1, 0, 1), { nil: undefined }).map(upstreamLies),
    fc.option(fc.nat(2), { nil: undefined }).map(upstreamBreaks),
    fc.constantFrom<Behaviour>('holds', 'holds', 'dead', 'lies', 'breaks', 'crashes').map(providerIs),
  ],
  { maxCommands: 20, size: 'max' },
)

const emptyModel = (): Model => ({
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
})

/** Rejects with the shortest history that fails, and its seed. */
export async function runHistories(histories: number, seed: number): Promise<void> {
  await fc.assert(
    fc.asyncProperty(fc.boolean(), steps, async (isShared, history) => {
      const world = await createWorld(isShared)
      try {
        await fc.asyncModelRun(() => ({ model: emptyModel(), real: world }), history)
      } finally {
        await world.close()
      }
    }),
    { numRuns: histories, seed },
  )
}
