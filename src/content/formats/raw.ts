// application/vnd.ipld.raw: the block at the end of the path, even if malformed.
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
