// Random histories: which steps there are and how often, and their run, which tells of a history that fails the shortest form and the
// command that runs it again.
import fc from 'fast-check'
import { files } from './content.ts'
import { deletePin, killDuringDelete, killDuringTakedown, pins, takeDown } from './operator.ts'
import { emptyModel } from './oracle.ts'
import { createProcessWorld } from './process-world.ts'
import { readAtReader, renewReader, settle, settled } from './sharing.ts'
import {
  kill,
  killDuringUpload,
  providerIs,
  read,
  readRange,
  reload,
  reloadDuringUpload,
  restart,
  storeIs,
  storeRots,
  upload,
  upstreamIs,
} from './steps.ts'
import type { StoreKind, StoreState } from './stores.ts'
import { type Conduct, createWorld, type Setting, type World } from './world.ts'

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
const inTheMiddle = fc.tuple(anyFile, fc.nat(60))
const often = <Value>(times: number, arbitrary: fc.Arbitrary<Value>) => Array.from({ length: times }, () => arbitrary)

const stepsOf = (maxCommands: number, replayPath: string | undefined) =>
  fc.commands(
    [
      ...often(3, anyFile.map(upload)),
      ...often(4, anyFile.map(read)),
      ...often(
        3,
        fc.tuple(anyFile, anyRange).map(([index, range]) => readRange(index, range)),
      ),
      ...often(2, anyFile.map(readAtReader)),
      fc.constant(renewReader),
      fc.constant(restart),
      fc.constant(kill),
      inTheMiddle.map(([index, steps]) => killDuringUpload(index, steps)),
      ...often(2, anySetting.map(reload)),
      fc.tuple(anyFile, anySetting).map(([index, setting]) => reloadDuringUpload(index, setting)),
      anyFile.map(deletePin),
      inTheMiddle.map(([index, steps]) => killDuringDelete(index, steps)),
      anyFile.map(takeDown),
      inTheMiddle.map(([index, steps]) => killDuringTakedown(index, steps)),
      fc.constant(pins),
      fc.constant(storeRots),
      fc.constantFrom<StoreState>('refuses', 'fails', 'is silent', 'well', 'well', 'well').map(storeIs),
      fc.constant(settled),
      fc
        .option(fc.constantFrom(-1, 0, 1), { nil: undefined })
        .map((lieAt) => upstreamIs(lieAt === undefined ? {} : { lieAt })),
      fc
        .option(fc.nat(2), { nil: undefined })
        .map((breakAfter) => upstreamIs(breakAfter === undefined ? {} : { breakAfter })),
      fc.constantFrom<Conduct>('holds', 'holds', 'dead', 'lies', 'breaks', 'crashes').map(providerIs),
    ],
    { maxCommands, size: 'max', ...(replayPath !== undefined && { replayPath }) },
  )

export type HistoriesOptions = {
  readonly histories: number
  readonly seed: number
  /** The gateway is a process of its own, and `kill` ends it with SIGKILL. */
  readonly isKilled?: boolean
  /** Of a history that failed: that one alone is run. */
  readonly path?: string | undefined
  readonly replayPath?: string | undefined
  readonly onPassed?: (count: number) => void
}

type Form = {
  readonly maxSteps: number
  readonly kinds: readonly StoreKind[]
  readonly workers: readonly number[]
  create(kind: StoreKind, workers: number): Promise<World>
}

const inProcess: Form = { maxSteps: 20, kinds: ['own', 'shared', 's3', 'redis'], workers: [1], create: createWorld }
const asProcess: Form = { maxSteps: 14, kinds: ['s3', 'redis'], workers: [1, 2], create: createProcessWorld }

/** Rejects with the shortest history that fails, and the command that runs it again. */
export async function runHistories(options: HistoriesOptions): Promise<void> {
  const { histories, seed, isKilled = false, path, replayPath, onPassed = () => {} } = options
  const { maxSteps, kinds, workers, create } = isKilled ? asProcess : inProcess
  let passed = 0
  const setups = kinds.flatMap((kind) => workers.map((count) => ({ kind, count })))
  const property = fc.asyncProperty(
    fc.constantFrom(...setups),
    stepsOf(maxSteps, replayPath),
    async (setup, history) => {
      const { kind, count } = setup
      const world = await create(kind, count)
      const model = emptyModel(kind !== 'own')
      try {
        await fc.asyncModelRun(() => ({ model, real: world }), history)
        if (model.isShared) await settle(model, world)
      } finally {
        await world.close()
      }
      onPassed(++passed)
    },
  )
  const found = await fc.check(property, { numRuns: histories, seed, ...(path !== undefined && { path }) })
  if (!found.failed) return
  const [setup, history] = found.counterexample ?? []
  const again = /replayPath="([^"]*)"/.exec(String(history))?.[1]
  const words = [
    `a history with the store ${setup?.kind} and ${setup?.count} processes failed after ${found.numRuns} runs and ${found.numShrinks} cuts: ${String(history)}`,
    `run it again: npm run faults -- --histories 1${isKilled ? ' --kill' : ''} --seed ${seed} --path ${found.counterexamplePath} --replay ${again}`,
  ]
  throw new Error(words.join('\n'), { cause: found.errorInstance })
}
