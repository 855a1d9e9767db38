// application/vnd.ipld.car: the blocks that prove a path and its entity (IPIP-402), in depth-first
// order (IPIP-412). It is streamed, so a CAR that was cut off lacks blocks, and its reader has to
// check.
import { createHash } from 'node:crypto'
import type { Block } from '../../core/cid.ts'
import { malformed } from '../../core/failure.ts'
import { writeCar } from '../../ipld/car.ts'
import type { DagWant, Session } from '../../retrieval/session.ts'
import { type Span, walkDag } from '../dag/walk.ts'
import { entityOf, type PathChain, type Resolution, walkPath } from '../resolve.ts'
import { type Format, type FormatRequest, weakTag } from './format.ts'

const mediaType = 'application/vnd.ipld.car'

type CarParams = {
  readonly scope: DagWant['scope']
  readonly bytes: EntityBytes | undefined
  /** The order is always depth-first; `unk` is only echoed to a client that asks for it. */
  readonly order: 'dfs' | 'unk'
  readonly dups: boolean
}

export const car: Format = {
  name: 'car',
  mediaType,
  wants(request) {
    const { scope, bytes } = carParams(request)
    if (!bytes) return { scope, opaque: true }
    const range = hintOf(bytes)
    // A range from the end of a file needs its size, so the root block is fetched first.
    return range ? { scope, range, opaque: true } : { scope: 'block', opaque: true }
  },
  async render(session, resolution, request) {
    const params = carParams(request)
    const { path, entity, chain } = resolution
    const part = partOf(session, resolution, params)
    return {
      type: `${mediaType}; version=1; order=${params.order}; dups=${params.dups ? 'y' : 'n'}`,
      etag: weakTag(entity.cid, `.car.${fingerprint(resolution, params)}`, request),
      save: { kind: 'attachment', filename: `${[path.cid, ...path.segments.slice(-1)].join('_')}.car` },
      size: undefined,
      ranges: false,
      read: () => writeCar(entity.cid, blocksOf(session, resolution, part, { ...params, chain })),
    }
  },
}

function carParams({ query, parameters }: FormatRequest): CarParams {
  const asked = (name: 'version' | 'order' | 'dups') => query.get(`car-${name}`) || parameters[name] || undefined
  const version = asked('version') ?? '1'
  if (version !== '1') throw malformed(`CAR version ${version} is not supported; use car-version=1`)
  const order = asked('order') ?? 'dfs'
  if (order !== 'dfs' && order !== 'unk') throw malformed(`car-order=${order} is not one of dfs, unk`)
  const dups = asked('dups') ?? 'n'
  if (dups !== 'y' && dups !== 'n') throw malformed(`car-dups=${dups} is not one of y, n`)
  const scope = query.get('dag-scope') ?? 'all'
  if (scope !== 'block' && scope !== 'entity' && scope !== 'all') {
    throw malformed(`dag-scope=${scope} is not one of block, entity, all`)
  }
  const text = query.get('entity-bytes')
  const bytes = text === null ? undefined : parseEntityBytes(text)
  // The specification: entity-bytes implies dag-scope=entity.
  return { scope: bytes ? 'entity' : scope, bytes, order, dups: dups === 'y' }
}

type PartOfDag = { readonly scope: DagWant['scope']; readonly range?: Span | undefined }

/** Maps the parameters to a part of the entity, once its kind and size are known. */
function partOf({ readNode }: Session, { entity, remainder }: Resolution, { scope, bytes }: CarParams): PartOfDag {
  if (remainder.length > 0) return { scope: scope === 'all' ? 'all' : 'block' }
  if (!bytes) return { scope }
  const { kind, size } = entityOf(entity.cid, entity.block, readNode)
  if (kind !== 'file' || size === undefined) return { scope }
  const range = placeEntityBytes(bytes, size)
  return range ? { scope, range } : { scope: 'block' }
}

async function* blocksOf(
  session: Session,
  { path, entity, remainder }: Resolution,
  { scope, range }: PartOfDag,
  { dups, chain }: Pick<CarParams, 'dups'> & { readonly chain: PathChain },
): AsyncGenerator<Block> {
  const root: Block = { cid: entity.cid, bytes: entity.block }
  if (path.segments.length > 0) {
    for await (const block of walkPath(session, path, { scope, range: range && lastIncluded(range), opaque: true })) {
      if (block.cid.equals(root.cid)) continue
      yield block
    }
  }
  if (scope === 'block') yield root
  else yield* walkDag(session, root, { scope, range, dups, chain, names: remainder, isLenient: true })
}

const lastIncluded = ({ from, to }: Span) => ({ from, to: to - 1 })

/** The path is part of the fingerprint, because its blocks are part of the response. */
function fingerprint({ path }: Resolution, { scope, bytes, order, dups }: CarParams): string {
  const facts = [path.cid.toString(), path.segments, scope, bytes?.from, bytes?.to, order, dups]
  return createHash('sha256').update(JSON.stringify(facts)).digest('hex').slice(0, 16)
}

type EntityBytes = {
  readonly from: number
  /** Undefined means the end. */
  readonly to: number | undefined
}

export function parseEntityBytes(text: string): EntityBytes {
  const match = /^(-?\d{1,19}):(\*|-?\d{1,19})$/.exec(text)
  if (!match) throw malformed(`entity-bytes=${text.slice(0, 60)} is not from:to, such as 0:1023, -1024:* or 499:-1000`)
  const from = bounded(match[1] as string)
  const to = match[2] === '*' ? undefined : bounded(match[2] as string)
  if (to !== undefined && from < 0 === to < 0 && from > to) {
    throw malformed(`entity-bytes=${text} begins after its end`)
  }
  return { from, to }
}

/** Go clients write the largest int64 for "to the end"; no file is that long. */
const bounded = (digits: string): number =>
  Math.max(Number.MIN_SAFE_INTEGER, Math.min(Number.MAX_SAFE_INTEGER, Number(digits))) + 0

/**
 * The byte range in a file of this size, `to` excluded; undefined if it is empty, which the root
 * block alone proves.
 */
export function placeEntityBytes(bytes: EntityBytes, size: number): { from: number; to: number } | undefined {
  const from = bytes.from < 0 ? Math.max(0, size + bytes.from) : bytes.from
  const last = bytes.to === undefined ? size - 1 : bytes.to < 0 ? size + bytes.to : bytes.to
  const to = Math.min(last + 1, size)
  return from < to ? { from, to } : undefined
}

/** The range as far as it is known without the size, for fetching a cold file. */
export function hintOf({ from, to }: EntityBytes): { from: number; to?: number } | undefined {
  if (from < 0) return undefined
  return to === undefined || to < 0 ? { from } : { from, to }
}
