// The formats of a response. Raw blocks and documents are sent as stored and never converted
// (IPIP-524); CARs and tars have files of their own.

import { codec } from '../../core/cid.ts'
import { etagOf, type Resolution, refuseRemainder } from '../resolve.ts'
import { car } from './car.ts'
import { type Format, type FormatName, inMemory, notAcceptable, type Representation } from './format.ts'
import { tar } from './tar.ts'

const rawType = 'application/vnd.ipld.raw'

/** The block at the end of the path, even if malformed. */
const raw: Format = {
  name: 'raw',
  mediaType: rawType,
  wants: () => ({ scope: 'block', opaque: true }),
  async render(_session, resolution) {
    refuseRemainder(resolution)
    return storedBlock(resolution, rawType, '.raw', { extension: '.bin', kind: 'attachment' })
  },
}

const { json, dagJson, cbor, dagCbor } = codec

/** `json` and `cbor` are other names for the same bytes; for a file they change nothing. */
const document = (name: FormatName, mediaType: string, ...codecs: readonly number[]): Format => ({
  name,
  mediaType,
  wants: () => ({ scope: 'entity' }),
  async render(_session, resolution) {
    const { cid, kind } = resolution.entity
    if ((name === 'json' || name === 'cbor') && kind !== 'data') return undefined
    refuseRemainder(resolution)
    if (!codecs.includes(cid.code))
      throw notAcceptable(cid, name, `its codec is 0x${cid.code.toString(16)}, and nothing is converted`)
    return name.endsWith('json')
      ? storedBlock(resolution, mediaType, `.${name}`, { extension: '.json', kind: 'inline' })
      : storedBlock(resolution, mediaType, `.${name}`, { extension: '.cbor', kind: 'attachment' })
  },
})

/** A stored block with one of its media types. `suffix`: of its ETag. */
function storedBlock(
  resolution: Resolution,
  type: string,
  suffix: string,
  { kind, extension }: { readonly kind: 'inline' | 'attachment'; readonly extension: string },
): Representation {
  const { cid, block, release } = resolution.entity
  const save = { kind, filename: `${cid}${extension}` }
  return { ...inMemory(block, type), etag: etagOf(cid, suffix), save, release }
}

const all: readonly Format[] = [
  raw,
  car,
  tar,
  document('dag-json', 'application/vnd.ipld.dag-json', dagJson),
  document('dag-cbor', 'application/vnd.ipld.dag-cbor', dagCbor),
  document('json', 'application/json', json, dagJson),
  document('cbor', 'application/cbor', cbor, dagCbor),
]

export const formats: ReadonlyMap<FormatName, Format> = new Map(all.map((format) => [format.name, format]))
