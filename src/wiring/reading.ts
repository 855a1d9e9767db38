// The read side put together: where blocks come from, what names mean, what is denied, and the complete answers in memory.
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import { ConfigError } from '../config/complaints.ts'
import type { Config } from '../config/load.ts'
import { type LoadedDenylists, loadDenylists } from '../deny/sources.ts'
import { Failure } from '../failure.ts'
import { createHot, type Hot } from '../http/hot.ts'
import { createNames, type Names } from '../names/names.ts'
import { createPool, type Pool } from '../retrieval/pool.ts'
import { startProbes } from '../retrieval/probes.ts'
import { createRetrieval } from '../retrieval/retrieval.ts'
import type { Retrieval } from '../retrieval/session.ts'
import type { TierStack } from '../retrieval/tier-stack.ts'
import type { Member } from './backends.ts'
import type { Whole } from './whole.ts'

export type Reading = {
  readonly pool: Pool
  readonly retrieval: Retrieval
  readonly hot: Hot
  readonly denylists: LoadedDenylists
  readonly names: Names
  /** Throws a Failure `denied` for what is not to be kept or served here. */
  readonly visit: (cid: CID, rest: readonly string[]) => void
}

export async function wireReading(
  whole: Whole,
  { stack, members }: { readonly stack: TierStack; readonly members: readonly Member[] },
): Promise<Reading> {
  const { config, clock, log, onClose } = whole
  const pool = createPool({ members, hedge: config.retrieval.hedge, clock, log })
  const retrieval = wireRetrieval(whole, stack, pool)
  const hot = createHot(config.cache.hot)
  const denylists = await wireDenylists(whole, hot)
  const names = createNames({
    settings: config.names,
    pool,
    folder: join(config.data, 'names'),
    visit(name, rest) {
      const denial = denylists.belowName(name, rest)
      if (denial) throw denied(denial)
    },
    userAgent: config.retrieval.userAgent,
    clock,
    log,
  })
  onClose(() => names.close())
  const probes = startProbes({ pool, everyMs: config.retrieval.probeEvery, clock, log })
  onClose(() => probes.close())
  return {
    pool,
    retrieval,
    hot,
    denylists,
    names,
    visit(cid, rest) {
      const denial = denylists.path(cid, rest)
      if (denial) throw denied(denial)
    },
  }
}

function wireRetrieval({ config, clock, log, onClose }: Whole, stack: TierStack, pool: Pool): Retrieval {
  const { deadline, blockDeadline, keepLooking, readAhead, notFound } = config.retrieval
  const retrieval = createRetrieval({
    stack,
    pool,
    clock,
    log,
    deadlineMs: deadline,
    blockDeadlineMs: blockDeadline,
    keepLookingMs: keepLooking,
    readAheadBytes: readAhead,
    notFound: { firstMs: notFound.first, mostMs: notFound.most },
  })
  onClose(() => retrieval.close())
  // What a store answers now is worth a line in the log, and no reason not to start: it may come back.
  stack.probeAll().then(
    (failures) => {
      for (const { tier, failure } of failures) log('warn', 'tier.unusable', { tier, why: failure.message })
    },
    () => {},
  )
  return retrieval
}

async function wireDenylists({ config, clock, log, onClose }: Whole, hot: Hot): Promise<LoadedDenylists> {
  const denylists = await loadDenylists(config.denylists, {
    clock,
    log,
    userAgent: config.retrieval.userAgent,
    folder: folderOf(config),
    onChange: () => hot.clear(),
  }).catch((error: unknown) => {
    throw new ConfigError([`denylists: ${error instanceof Error ? error.message : error}`])
  })
  onClose(() => denylists.close())
  return denylists
}

const folderOf = ({ data }: Config): string => join(data, 'denylists')

function denied({ list, legal, reason }: { list: string; legal: boolean; reason: string | undefined }): Failure {
  const why = reason === undefined ? '' : `: ${reason}`
  return new Failure('denied', `the list ${list} of this gateway's operator denies it${why}`, {
    source: 'ours',
    facts: { legal },
  })
}
