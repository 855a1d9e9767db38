// json, cbor, dag-json and dag-cbor: documents as stored, never converted (IPIP-524). `json` and
// `cbor` are other names for the same bytes; for a file they change nothing.

import { codec } from '../../core/cid.ts'
import { type Format, type FormatName, notAcceptable, refuseRemainder, storedBlock } from './format.ts'

type DocumentFormat = {
  readonly name: FormatName
  readonly mediaType: string
  readonly codecs: readonly number[]
  readonly extension: string
  readonly disposition: 'inline' | 'attachment'
}

const { json, dagJson, cbor, dagCbor } = codec

const documentFormat = ({ name, mediaType, codecs, extension, disposition }: DocumentFormat): Format => {
  const isPlain = name === 'json' || name === 'cbor'
  return {
    name,
    mediaType,
    wants: () => ({ scope: 'entity' }),
    async render(_session, resolution) {
      const { cid, kind } = resolution.entity
      if (isPlain && kind !== 'data') return undefined
      refuseRemainder(resolution)
      if (!codecs.includes(cid.code)) {
        throw notAcceptable(cid, name, `its codec is 0x${cid.code.toString(16)}, and nothing is converted`)
      }
      return storedBlock(resolution, { type: mediaType, suffix: `.${name}`, extension, kind: disposition })
    },
  }
}

export const documents: readonly Format[] = [
  documentFormat({
    name: 'dag-json',
    mediaType: 'application/vnd.ipld.dag-json',
    codecs: [dagJson],
    extension: '.json',
    disposition: 'inline',
  }),
  documentFormat({
    name: 'dag-cbor',
    mediaType: 'application/vnd.ipld.dag-cbor',
    codecs: [dagCbor],
    extension: '.cbor',
    disposition: 'attachment',
  }),
  documentFormat({
    name: 'json',
    mediaType: 'application/json',
    codecs: [json, dagJson],
    extension: '.json',
    disposition: 'inline',
  }),
  documentFormat({
    name: 'cbor',
    mediaType: 'application/cbor',
    codecs: [cbor, dagCbor],
    extension: '.cbor',
    disposition: 'attachment',
  }),
]
