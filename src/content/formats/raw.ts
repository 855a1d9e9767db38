// application/vnd.ipld.raw: the block a path ends at, whatever it means or fails to mean.
import { type Format, refuseRemainder, storedBlock } from './format.ts'

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
