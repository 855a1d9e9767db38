// How often property tests run, and on what: the same inputs each time. fast-check tells the seed and the path of a run that failed.
// `CIDGATE_TIMES=100 node --test <file>` runs a hundred times as many, of another seed each time; `CIDGATE_SEED=7` takes the seed 7.
const { CIDGATE_SEED: chosen, CIDGATE_TIMES: times = '1' } = process.env
const usualSeed = 20_261_122
const seed = Number(chosen ?? (times === '1' ? usualSeed : Date.now() % 2 ** 31))

export const runs = (count: number) => ({ seed, numRuns: Math.ceil(count * Number(times)) })
