// One upstream's answer to a want, as proved blocks that belong to it, pulled one at a time. What does not belong there is
// passed over, within bounds that go by number as well as by bytes: an answer may be endless and cost its sender nothing.
import type { DagWant } from '../../../backends/upstreams/contract.ts'
import { type Block, isIdentity, proves } from '../../core/block.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { createCidSet } from '../../ipld/cid-set.ts'
import { hashMismatch } from '../flight/block-flight.ts'
import type { Attempts } from '../upstreams/attempts.ts'
import type { Member } from '../upstreams/pool.ts'
import type { LetGo, Question } from '../upstreams/question.ts'

export interface Source {
  readonly member: Member
  /** The source waits for its slot at the upstream, which has not been asked yet. */
  readonly isQueued: boolean
  /** The next proved block, or undefined at the end of the answer. The account of the question is kept here. */
  next(): Promise<Block | undefined>
  /** Wanted bytes from here were of use, or readers waited this long and nothing came. */
  brought(bytes: number, waitedMs: number): void
  // Each of these ends the question and frees the socket.
  done(): void
  failed(reason: unknown): void
  letGo(why: LetGo, reason: Failure): void
}

export type SourceOptions = {
  readonly member: Member
  readonly part: DagWant
  readonly attempts: Attempts
  /** Whether a proved block points at this one, or it is the one that was asked for. */
  readonly isExpected: (block: Block) => boolean
  /** The source has its slot: the upstream is asked from now on. */
  readonly onAsked?: () => void
  /** Aborts when no reader wants any of it any more. */
  readonly signal: AbortSignal
}

const mostUselessBlocks = 4096
const mostUselessBytes = 4 * 1024 * 1024

export function openSource({ member, part, attempts, isExpected, signal, onAsked }: SourceOptions): Source {
  const { upstream } = member
  const { clock } = attempts
  const own = new AbortController()
  const leave = () => own.abort(signal.reason)
  signal.addEventListener('abort', leave, { once: true })
  if (signal.aborted) leave()
  const seen = createCidSet()
  let question: Question | undefined
  let blocks: AsyncIterator<Block> | undefined
  let useless = 0
  let uselessBytes = 0

  function close(reason: unknown): void {
    signal.removeEventListener('abort', leave)
    own.abort(reason)
  }

  /** Resolves when it has its slot. */
  async function ask(): Promise<void> {
    own.signal.throwIfAborted()
    const entered = attempts.enter(member, 'dag', part.cid, own)
    question = entered.question
    await entered.slot
    onAsked?.()
  }

  /** Of an upstream that gives no CAR, or one without the root in it, or with too much before it, the root comes alone. */
  async function* answer(): AsyncGenerator<Block> {
    const alone = async (): Promise<Block> => ({ cid: part.cid, bytes: await upstream.block(part.cid, own.signal) })
    if (!upstream.traits.dag) return yield await alone()
    try {
      for await (const block of upstream.dag(part, own.signal)) if (isOfUse(block)) yield block
    } catch (error) {
      if (seen.size > 0 || !isRefusalOfCar(error)) throw error
      return yield await alone()
    }
    if (seen.size > 0) return
    // The upstream may lack the root, or have it and not know how to read it; below a path it may also lack the path.
    if (part.segments.length === 0) return yield await alone()
    throw new Failure('not-found', `${upstream.name} sent an answer without ${part.cid}`, { source: 'upstream' })
  }

  function isOfUse(block: Block): boolean {
    if (isIdentity(block.cid) || !isExpected(block)) passOver(block)
    else if (seen.has(block.cid)) passOverRepeated()
    else return true
    return false
  }

  function passOver({ bytes }: Block): void {
    useless++
    uselessBytes += bytes.byteLength
    if (useless <= mostUselessBlocks && uselessBytes <= mostUselessBytes) return
    throw new Failure('upstream-error', `${upstream.name} keeps sending blocks that were not asked for`, {
      source: 'upstream',
      facts: { refuses: 'format' },
    })
  }

  /** A source that repeats one block endlessly brings nothing, but a file may repeat a block a few times. */
  function passOverRepeated(): void {
    if (++useless <= mostUselessBlocks + seen.size) return
    throw new Failure('upstream-error', `${upstream.name} keeps sending the same blocks`, { source: 'upstream' })
  }

  async function nextProved(from: AsyncIterator<Block>, asked: Question): Promise<Block | undefined> {
    const { value: block, done } = await asked.within(() => from.next())
    if (done) return undefined
    if (!proves(block.cid, block.bytes)) throw hashMismatch(upstream.name, block.cid)
    seen.add(block.cid)
    return block
  }

  return {
    member,
    get isQueued() {
      return question?.isQueued === true
    },
    async next() {
      try {
        if (!question) await ask()
        blocks ??= answer()
        const block = await nextProved(blocks, question as unknown as Question)
        if (block) return block
        this.done()
        return undefined
      } catch (error) {
        this.failed(error)
        throw error
      }
    },
    brought: (bytes, waitedMs) => question?.brought(bytes, waitedMs, clock.monotonic()),
    done() {
      question?.done(clock.monotonic())
      close(over)
    },
    failed(reason) {
      question?.failed(reason, clock.monotonic())
      close(reason)
    },
    letGo(why, reason) {
      question?.letGo(why, clock.monotonic())
      close(reason)
    },
  }
}

const over = new Failure('cancelled', 'the answer is over', { source: 'ours' })

/** A gateway that speaks no CAR says so in one of these ways, or sends one that is of no use; it may still have the block. */
const isRefusalOfCar = (error: unknown): boolean => isFailure(error) && error.facts.refuses === 'format'
