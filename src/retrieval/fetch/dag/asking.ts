// Which upstream is asked next for an answer under way, and for which part of it.
import type { CID } from 'multiformats/cid'
import type { DagWant } from '../../../../backends/upstreams/contract.ts'
import type { Failure } from '../../../core/failure.ts'
import type { Attempts } from '../../upstreams/attempts.ts'
import type { Step } from '../../upstreams/order.ts'
import { outcomeOf } from '../../upstreams/outcome.ts'
import type { Finding, Member, Plan, Pool } from '../../upstreams/pool.ts'
import type { Tries } from '../../upstreams/tries.ts'
import type { Readers } from '../readers.ts'
import type { Runners } from '../runners.ts'
import type { DagBlocks } from './blocks.ts'

export interface Asking {
  /** The upstreams that could be asked for the missing blocks, the best first. */
  candidates(): Plan
  start(step: Step<Member>): void
  /**
   * Starts the next upstream at once, first and after a failure. `later`: none can be asked now, but one may be soon.
   * `over`, or the failure to answer: none can be asked in time.
   */
  goOn(): 'asked' | 'later' | 'over' | Failure
  /** Asks the routers too, for gateways that hold the root. */
  findMore(): void
  /** Whether an upstream that is not at it could be asked for single blocks. */
  hasOtherForBlocks(): boolean
}

export type AskingOptions = {
  readonly want: DagWant
  readonly pool: Pool
  readonly attempts: Attempts
  readonly tries: Tries
  readonly blocks: DagBlocks
  readonly readers: Readers
  readonly runners: Runners
  /** The CID that the client asked for. */
  readonly root: CID
  /** Called when a router named somebody, or none will. */
  readonly onNews: () => void
}

export function createAsking(options: AskingOptions): Asking {
  const { want, pool, attempts, tries, blocks, readers, runners, root, onNews } = options
  let isFirst = true
  let finding: Finding | undefined

  function findMore(): void {
    if (finding || !pool.find) return
    const begun = pool.find(root)
    finding = begun
    const note = () => attempts.looked(begun.attempts, begun.failure)
    if (begun.isOver) return note()
    const forget = begun.onNews(() => {
      if (begun.isOver) {
        forget()
        note()
      }
      onNews()
    })
  }

  function candidates(): Plan {
    const plan = pool.plan('dag', want.cid, runners.tried, root)
    if (blocks.size === 0) return plan
    // An upstream without CAR can bring the first block, and nothing after that.
    return { ...plan, steps: plan.steps.filter(({ who }) => who.upstream.traits.dag) }
  }

  function start(step: Step<Member>): void {
    const part = blocks.size === 0 ? want : (readers.furthestBehind() ?? want)
    blocks.expect(part.cid)
    runners.start(step, part)
  }

  return {
    candidates,
    start,
    findMore,
    goOn() {
      if (isFirst) pool.began()
      else findMore()
      const { steps, ...left } = candidates()
      if (isFirst) attempts.skip(left.skipped)
      isFirst = false
      const [step] = steps
      if (step) start(step)
      if (step || runners.size > 0) return 'asked'
      if (blocks.size > 0) return 'over'
      findMore()
      if (finding?.isOver === false) return 'later'
      const [named] = finding ? candidates().steps : []
      if (named) {
        start(named)
        return 'asked'
      }
      return tries.hopes() ? 'later' : outcomeOf(want.cid, attempts.failures, left)
    },
    hasOtherForBlocks: () => pool.plan('block', want.cid, runners.members, root).steps.length > 0,
  }
}
