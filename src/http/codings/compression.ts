// Compresses answers on the threads of zlib, a few at a time. An answer that finds no room goes out plain: none waits for
// another one, unless both want the same bytes.
import type { Transform } from 'node:stream'
import { promisify } from 'node:util'
import {
  brotliCompress,
  constants,
  createBrotliCompress,
  createGzip,
  createZstdCompress,
  gzip,
  zstdCompress,
} from 'node:zlib'
import { type Accepted, createAcceptEncodings, plainOnly } from './accept-encoding.ts'
import { type CodedPieces, codedPieces } from './coded-pieces.ts'
import type { Coding } from './codings.ts'
import { type AboutBody, isCompressible } from './compressible.ts'

export interface Compression {
  /** What a client takes, by its Accept-Encoding. */
  readonly accepted: (header: string | undefined) => Accepted
  /** Whether an answer depends on Accept-Encoding. */
  readonly covers: (about: AboutBody) => boolean
  /**
   * All of it in a coding. Undefined, at once or later: there is no room, or it failed. The bytes are read until it is over. Answers
   * with the same `name` have the same bytes, and share the work.
   */
  compress(bytes: Uint8Array, coding: Coding, name?: string): Promise<Buffer | undefined> | undefined
  /** Piece by piece. Undefined: there is no room. */
  stream(pieces: AsyncIterable<Uint8Array>, coding: Coding): CodedPieces | undefined
  readonly counts: CompressionCounts
}

export type CompressionCounts = {
  readonly made: Record<Coding, number>
  /** Went out plain, because enough others were compressed. */
  busy: number
}

export type CompressionOptions = {
  readonly isOn: boolean
  /** Answers compressed at once. The threads also read files. */
  readonly most?: number
  /** Answers compressed while they are sent: a slow client has a place for long, and some mebibytes with it. */
  readonly mostStreams?: number
}

const { BROTLI_PARAM_QUALITY, BROTLI_PARAM_SIZE_HINT, BROTLI_PARAM_LGWIN } = constants
const { ZSTD_c_compressionLevel, ZSTD_c_windowLog } = constants

// By measurement: the next step up costs more than it saves.
const quality = { br: 5, zstd: 3, gzip: 6 } as const
// An answer that is sent meanwhile holds this much of itself.
const windowBits = 18

const toBrotli = promisify(brotliCompress)
const toZstd = promisify(zstdCompress)
const toGzip = promisify(gzip)

export function createCompression({ isOn, most = 2, mostStreams = 8 }: CompressionOptions): Compression {
  const underWay = new Map<string, Promise<Buffer | undefined>>()
  const counts: CompressionCounts = { made: { br: 0, zstd: 0, gzip: 0 }, busy: 0 }
  let running = 0
  let streams = 0

  async function run(bytes: Uint8Array, coding: Coding): Promise<Buffer | undefined> {
    running++
    try {
      const made = alone(await compressed(bytes, coding))
      counts.made[coding]++
      return made
    } catch {
      return undefined // out of memory: the plain answer is as good
    } finally {
      running--
    }
  }

  return {
    accepted: isOn ? createAcceptEncodings() : () => plainOnly,
    covers: isOn ? isCompressible : () => false,
    compress(bytes, coding, name) {
      const known = name === undefined ? undefined : underWay.get(name)
      if (known !== undefined) return known
      if (running >= most) {
        counts.busy++
        return undefined
      }
      const made = run(bytes, coding)
      if (name === undefined) return made
      underWay.set(name, made)
      return made.finally(() => underWay.delete(name))
    },
    stream(pieces, coding) {
      if (streams >= mostStreams) {
        counts.busy++
        return undefined
      }
      streams++
      counts.made[coding]++
      return codedPieces(pieces, coder(coding), () => {
        streams--
      })
    },
    counts,
  }
}

function compressed(bytes: Uint8Array, coding: Coding): Promise<Buffer> {
  const size = bytes.byteLength
  // The whole result in one or two rounds of the loop.
  const chunkSize = Math.max(1024, Math.ceil(size / 3))
  switch (coding) {
    case 'br':
      return toBrotli(bytes, {
        chunkSize,
        params: { [BROTLI_PARAM_QUALITY]: quality.br, [BROTLI_PARAM_SIZE_HINT]: size },
      })
    case 'zstd':
      return toZstd(bytes, { chunkSize, params: { [ZSTD_c_compressionLevel]: quality.zstd } })
    case 'gzip':
      return toGzip(bytes, { chunkSize, level: quality.gzip })
  }
}

function coder(coding: Coding): Transform {
  switch (coding) {
    case 'br':
      return createBrotliCompress({
        params: { [BROTLI_PARAM_QUALITY]: quality.br, [BROTLI_PARAM_LGWIN]: windowBits },
      })
    case 'zstd':
      return createZstdCompress({
        params: { [ZSTD_c_compressionLevel]: quality.zstd, [ZSTD_c_windowLog]: windowBits },
      })
    case 'gzip':
      return createGzip({ level: quality.gzip })
  }
}

/** Without the room that zlib took for it: what is kept would hold that, too. */
function alone(bytes: Buffer): Buffer {
  if (bytes.byteLength === bytes.buffer.byteLength) return bytes
  const own = Buffer.allocUnsafeSlow(bytes.byteLength)
  bytes.copy(own)
  return own
}
