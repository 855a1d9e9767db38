// Random histories of a gateway against a simple model of what must be readable (model/steps.ts): uploads, reads, ranges, reloads,
// restarts, kills, and an upstream, a store and a provider that break and get well. A history that fails is cut down to the shortest one
// that does, and told with its seed. `npm test` runs the same few each time; `npm run faults -- --histories 10000` runs so many others.
import { test } from 'node:test'
import { runHistories } from './model/steps.ts'

const { CIDGATE_MODEL_RUNS: runs, CIDGATE_MODEL_SEED: seed } = process.env
const usualSeed = 20_261_122

test('every history keeps what was acknowledged, and tells no other bytes', () =>
  runHistories(Number(runs ?? 6), Number(seed ?? (runs ? Date.now() : usualSeed))))
