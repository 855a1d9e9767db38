// application/vnd.ipld.raw: the block at the end of the path, even if malformed.

import { car } from './car.ts'
import { documents } from './document.ts'
import { type Format, type FormatName, refuseRemainder, storedBlock } from './format.ts'
import { tar } from './tar.ts'

const mediaType = 'application/vnd.ipld.raw'

export const raw: Format = {
  name: 'raw',
  mediaType,
  wants: () => ({ scope: 'block', opaque: true }),
  async render(_session, resolution) {
    refuseRemainder(resolution)
    return storedBlock(resolution, {
      type: mediaType,
      suffix: '.raw',
      extension: '.bin',
      kind: 'attachment',
    })
  },
}

export const formats: ReadonlyMap<FormatName, Format> = new Map(
  [raw, car, tar, ...documents].map((format) => [format.name, format]),
)
