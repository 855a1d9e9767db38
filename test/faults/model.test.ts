// Random histories of a gateway against a simple model of what must be readable, what may be and what must not be (model/): uploads,
// reads, ranges, reloads, restarts, kills, deleted pins, takedowns, a second gateway that shares the store, and an upstream, a store and
// a provider that break and get well. A history that fails is cut down to the shortest one that does, and told with the command that runs
// it again. `npm test` runs the same few each time; `npm run faults -- --histories 10000` runs so many others, and with `--kill` each
// gateway is a process that is killed.
import { test } from 'node:test'
import { runHistories } from './model/histories.ts'

const { CIDGATE_MODEL_RUNS: runs, CIDGATE_MODEL_SEED: seed } = process.env
// Its three histories have a store in memory, an S3 and a Redis, a second reader, kills, deleted pins and a takedown.
const usualSeed = 10

test('random histories: acknowledged stays, deleted stays gone, bytes match', () =>
  runHistories({ histories: Number(runs ?? 3), seed: Number(seed ?? (runs ? Date.now() : usualSeed)) }))
