// An upload by a program without HTTP: admitted, checked, confirmed and readable like one of POST
// /add.
import type { CID } from 'multiformats/cid'
import { orAborted } from '../core/clock.ts'
import { Failure, malformed } from '../core/failure.ts'
import type { SchemaChecks } from '../schemas/checks.ts'
import type { Uploads } from '../upload/uploads.ts'

export type AddOptions = {
  /**
   * Aborts the upload while bytes arrive. After the last byte it only ends the waiting: the upload
   * is kept or undone as the providers answer. Rejects with the signal's reason.
   */
  readonly signal?: AbortSignal | undefined
  /** The name of a schema that the content must match, as with `POST /add?schema=`. */
  readonly schema?: string | undefined
}

/**
 * Content to add: a string (as UTF-8), bytes, or a stream of bytes, such as those of Node and of
 * the web.
 */
export type AddSource = string | Uint8Array | Blob | Iterable<Uint8Array> | AsyncIterable<Uint8Array>

/**
 * An upload that `pinning.minConfirmations` providers hold, and that is readable here.
 */
export interface Added {
  readonly cid: CID
  /** `/ipfs/<cid>` */
  readonly path: string
}

export type AddDeps = {
  readonly uploads: Pick<Uploads, 'enter' | 'add'>
  readonly schemas: Pick<SchemaChecks, 'names' | 'check'>
  /** The service that uploads are forwarded to in thin mode; undefined otherwise. */
  readonly through: string | undefined
  /** Counts the error and converts it to a Failure. */
  readonly failed: (error: unknown, about: string) => Failure
}

/** All uploads of a program count as one client's. */
const client = 'the program'

export function createAdd(deps: AddDeps): (source: AddSource, options?: AddOptions) => Promise<Added> {
  return async (source, { signal, schema } = {}) => {
    signal?.throwIfAborted()
    try {
      const { cid } = await orAborted(signal, begin(deps, source, { signal, schema }))
      return { cid, path: `/ipfs/${cid}` }
    } catch (error) {
      throw signal?.aborted && error === signal.reason ? error : deps.failed(error, 'add')
    }
  }
}

/** An upload occupies its slot until it is settled, even if the program has stopped waiting. */
async function begin(
  { uploads, schemas, through }: AddDeps,
  source: AddSource,
  { signal, schema }: AddOptions,
): Promise<{ readonly cid: CID }> {
  if (through !== undefined) {
    const what = `this gateway is in thin mode (upload.forwardTo) and keeps no uploads: add to ${through} itself`
    throw new Failure('unsupported', what, { source: 'client' })
  }
  if (schema !== undefined && !schemas.names.includes(schema))
    throw malformed(`unknown schema ${JSON.stringify(schema)}; known are ${schemas.names.join(', ')}`)
  const pieces = piecesOf(source)
  const slot = await uploads.enter(client, signal)
  try {
    return await uploads.add(pieces, {
      slot,
      ...(signal && { signal }),
      ...(schema !== undefined && { check: schemas.check(schema) }),
    })
  } finally {
    slot.leave()
  }
}

function piecesOf(source: AddSource): AsyncIterable<Uint8Array> {
  if (typeof source === 'string') return one(new TextEncoder().encode(source))
  if (source instanceof Uint8Array) return one(source)
  if (source instanceof Blob) return source.stream()
  if (typeof source === 'object' && source !== null) {
    if (Symbol.asyncIterator in source) return source
    if (Symbol.iterator in source) return each(source)
  }
  throw malformed('this cannot be added (expected text, a Uint8Array, a Blob, or an iterable of Uint8Array)')
}

async function* one(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes
}

async function* each(pieces: Iterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  yield* pieces
}
