// The model: from a load and what each kind of answer costs to hit ratios, instances, requests to upstreams and to S3, and their price.
// Arithmetic alone: no clock, no network, no random number.
import { asked, assumed, cost, day, type prices } from './load.ts'

export const fileBytes = day.bytes / day.requests
const secondsOfDay = 86_400
const mib = 2 ** 20

/** Ranks that count one by one; behind them, as many ranks as fit are taken as one, and asked for evenly. */
const single = 50
const growth = 1.1

type Group = { readonly share: number; readonly count: number }

/** The files in groups that are wanted alike, with the share of the requests that one file of it gets. */
function groups(files: number, skew: number): Group[] {
  const all: { weight: number; count: number }[] = []
  for (let rank = 1; rank <= files; ) {
    const last = rank < single ? rank : Math.min(files, Math.floor(rank * growth))
    const middle = Math.sqrt(rank * last)
    all.push({ weight: middle ** -skew, count: last - rank + 1 })
    rank = last + 1
  }
  const sum = all.reduce((total, { weight, count }) => total + weight * count, 0)
  return all.map(({ weight, count }) => ({ share: weight / sum, count }))
}

/**
 * The share of requests that an LRU cache of so many files answers, by Che's approximation: a file is there if it was asked for within
 * a time that is the same for all, and that time is such that as many are there as fit.
 */
export function hitRatio(fit: number, files = assumed.files, skew = assumed.skew): number {
  if (fit <= 0) return 0
  if (fit >= files) return 1
  const wanted = groups(files, skew)
  const held = (time: number) => wanted.reduce((sum, { share, count }) => sum + count * -Math.expm1(-share * time), 0)
  let [low, high] = [0, 1]
  while (held(high) < fit) high *= 2
  for (let step = 0; step < 30; step++) {
    const middle = (low + high) / 2
    if (held(middle) < fit) low = middle
    else high = middle
  }
  return wanted.reduce((sum, { share, count }) => sum + share * count * -Math.expm1(-share * high), 0)
}

export type Sizes = { readonly memory: number; readonly disk: number; readonly hasS3: boolean }

export type Plan = {
  /** Of all requests: what answered. */
  readonly answered: { readonly memory: number; readonly disk: number; readonly s3: number; readonly upstream: number }
  /** Processors at the peak, before any reserve. */
  readonly processors: number
  readonly instances: number
  readonly upstreamADay: number
  readonly s3: { readonly gets: number; readonly puts: number; readonly bytes: number } | undefined
}

/**
 * `sizes`: bytes of one instance. A balancer that goes by CID gives each file to one instance, so that the tiers of all add up; without
 * one each instance has the same files, and the largest tier is that of one.
 */
export function plan(sizes: Sizes, byCid = true): Plan {
  let instances = 1
  for (;;) {
    const shares = byCid ? instances : 1
    const memory = hitRatio((sizes.memory * shares) / fileBytes)
    const disk = Math.max(memory, hitRatio((sizes.disk * shares) / fileBytes))
    // S3 keeps all that ever came.
    const s3 = sizes.hasS3 ? 1 : disk
    const again = 1 - assumed.fresh
    const answered = {
      memory: memory * again,
      disk: (disk - memory) * again,
      s3: (s3 - disk) * again,
      upstream: 1 - s3 * again,
    }
    const perSecond = (day.requests / secondsOfDay) * assumed.peak
    const micros =
      answered.memory * of(cost.hot) +
      answered.disk * of(cost.disk) +
      answered.s3 * of(cost.s3) +
      answered.upstream * of(cost.miss)
    const processors = (perSecond * micros) / 1e6
    const needed = Math.max(2, Math.ceil(processors / assumed.busy / assumed.cores))
    if (needed <= instances)
      return {
        ...{ answered, processors, instances },
        upstreamADay: day.requests * answered.upstream * asked.upstream,
        s3: sizes.hasS3
          ? {
              gets: day.requests * answered.s3 * asked.hitGets * blocksOf,
              puts: day.requests * answered.upstream * asked.missPuts * blocksOf,
              bytes: assumed.files * fileBytes,
            }
          : undefined,
      }
    instances++
  }
}

const blocksOf = Math.max(1, fileBytes / assumed.blockBytes)
const of = ({ request, mib: each }: { readonly request: number; readonly mib: number }): number =>
  request + (each * fileBytes) / mib

export type Bill = { readonly store: number; readonly gets: number; readonly puts: number; readonly month: number }

/** Dollars of a month of thirty days: for the bytes that lie there, for reads, and for writes with the looks before them. */
export function bill({ gets, puts, bytes }: NonNullable<Plan['s3']>, price: (typeof prices)['s3' | 'r2']): Bill {
  const store = (bytes / 1e9) * price.month
  const looks = puts * (asked.missGets / asked.missPuts)
  const read = (((gets + looks) * 30) / 1000) * price.get
  const written = ((puts * 30) / 1000) * price.put
  return { store, gets: read, puts: written, month: store + read + written }
}

/** Dollars for a million requests that a tier or an upstream had to answer: `bytes` leave S3 for an instance elsewhere. */
export function perMillion(price: (typeof prices)['s3' | 'r2'], isElsewhere: boolean): Record<'hit' | 'miss', number> {
  const egress = isElsewhere ? ((1e6 * fileBytes) / 1e9) * price.egress : 0
  return {
    hit: 1000 * asked.hitGets * price.get * blocksOf + egress,
    miss: 1000 * (asked.missGets * price.get + asked.missPuts * price.put * blocksOf),
  }
}
