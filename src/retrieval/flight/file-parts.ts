// The part of a file that a free upstream should bring while others are at work on it: a pure
// function. Parts lie among the blocks that readers wait for, so that nothing is fetched further
// ahead than readers read.
import type { CID } from 'multiformats/cid'
import { maxBlockBytes } from '../../core/cid.ts'
import type { Place } from '../session.ts'
import type { AskKind } from '../upstreams/attempts.ts'
import type { Member } from '../upstreams/pool.ts'
import { maxStallMs, minStallMs } from './pace.ts'
import type { Span, UpstreamStream } from './upstream-stream.ts'

/** A block that a reader waits for, and the bytes of the file that it stands for. */
export type Waiting = {
  readonly cid: CID
  readonly place: Place
  readonly from: number
  readonly end: number
}

/**
 * `victim`: whose part ends where this one begins. `leaves`: all of it, where it is made of single
 * blocks.
 */
type FilePart = Span & { readonly victim?: UpstreamStream; readonly leaves?: readonly CID[] | undefined }

type Ability = { readonly kind: AskKind; readonly learned: number | undefined; readonly firstMs: number }

/**
 * `line`: in the order of the file. `hasOthers`: without any, one answer brings all that is left.
 * `isBack`: it stalled in this file, so that its learned rate is that of the silence.
 */
export function nextPart(
  member: Member,
  line: readonly Waiting[],
  streams: readonly UpstreamStream[],
  { hasOthers, isBack }: { readonly hasOthers: boolean; readonly isBack: boolean },
): FilePart | undefined {
  const { upstream, health } = member
  const kind = upstream.traits.dag ? 'dag' : 'block'
  const isOpen = ({ from }: Waiting) => !streams.some((one) => one.covers(from))
  const first = line.findIndex(isOpen)
  const learned = isBack ? undefined : health.rate(kind)
  const isFirstOnly = kind === 'dag' && health.sendsAll
  if (first === -1)
    return isFirstOnly ? undefined : takenOver({ kind, learned, firstMs: health.expectedMs(kind, 0) }, line, streams)
  const after = line.slice(first)
  const covered = after.findIndex((one) => !isOpen(one))
  const open = covered === -1 ? after : after.slice(0, covered)
  const { from } = open[0] as Waiting
  if (!hasOthers) return kind === 'dag' ? { from, to: Number.POSITIVE_INFINITY } : undefined
  if (isFirstOnly && from > 0) return undefined
  // A slow one gets a shorter part.
  const bytes = Math.max(maxBlockBytes, (learned ?? 0) * maxStallMs)
  const limit = Math.min(...streams.map((one) => one.from).filter((start) => start > from))
  return upTo(open, from + bytes, limit, kind)
}

/** From the first of these up to the block in which `max` lies. */
function upTo(open: readonly Waiting[], max: number, limit: number, kind: AskKind): FilePart | undefined {
  const { from } = open[0] as Waiting
  let to = from
  let leaves: CID[] | undefined = []
  for (const one of open) {
    if (to >= max) break
    const isLeaf = one.end - one.from <= maxBlockBytes
    if (kind === 'block' && !isLeaf) break
    to = isLeaf ? one.end : Math.max(to, Math.min(one.end, max))
    if (isLeaf) leaves?.push(one.cid)
    else leaves = undefined
  }
  return to > from ? { from, to: Math.min(to, limit), leaves } : undefined
}

/** The second part of what another one is at work on, so that both are done at the same time. */
function takenOver(
  { kind, learned, firstMs }: Ability,
  line: readonly Waiting[],
  streams: readonly UpstreamStream[],
): FilePart | undefined {
  let best: (FilePart & { readonly savedMs: number }) | undefined
  for (const victim of streams) {
    const own = victim.pace.rate
    // A stalled stream is hedged from where it stands.
    if (own === undefined || own === 0 || victim.isRacing || victim.pace.silentMs() >= maxStallMs) continue
    const work = line.filter(({ from }) => victim.covers(from))
    const [head, ...rest] = work
    const end = work.at(-1)?.end
    if (!head || end === undefined) continue
    const rate = learned ?? own
    // Both take as long: x / own = firstMs + (all - x) / rate.
    const kept = (firstMs + (end - head.from) / rate) / (1 / own + 1 / rate)
    const share = rest.findIndex(({ from }) => from >= head.from + kept)
    if (share === -1) continue
    const taken = upTo(rest.slice(share), Number.POSITIVE_INFINITY, Math.min(victim.to, end), kind)
    if (!taken) continue
    const savedMs = (taken.to - taken.from) / own
    if (savedMs >= minStallMs && savedMs > (best?.savedMs ?? 0)) best = { ...taken, victim, savedMs }
  }
  return best
}
