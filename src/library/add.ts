// An upload of a program, without HTTP: admitted, checked, confirmed and readable as one of POST /add is.
import type { CID } from 'multiformats/cid'
import { orAborted } from '../core/deadline.ts'
import { Failure } from '../core/failure.ts'
import type { SchemaChecks } from '../schemas/checks.ts'
import { malformed } from '../upload/failures.ts'
import type { Uploads } from '../upload/uploads.ts'

/** How something is added. */
export type AddOptions = {
  /**
   * Ends it while its bytes come. Behind them it only ends the waiting: what providers were given is kept or undone as they
   * answer. Rejects with the signal's reason.
   */
  readonly signal?: AbortSignal | undefined
  /** The name of a schema that the content has to obey, as with `POST /add?schema=`. */
  readonly schema?: string | undefined
}

/** What can be added: text (as UTF-8), bytes, or bytes as they come. Streams of Node and of the web are such. */
export type AddSource = string | Uint8Array | Blob | Iterable<Uint8Array> | AsyncIterable<Uint8Array>

/** What was added: held by as many providers as `pinning.confirm` says, and readable here. */
export interface Added {
  readonly cid: CID
  /** `/ipfs/<cid>` */
  readonly path: string
}

export type AddDeps = {
  readonly uploads: Pick<Uploads, 'enter' | 'add'>
  readonly schemas: Pick<SchemaChecks, 'names' | 'check'>
  /** Where uploads go in thin mode, which keeps none. */
  readonly through: string | undefined
  /** Counts it; what is no Failure becomes one. */
  readonly failed: (error: unknown, about: string) => Failure
}

/** All uploads of a program are those of one client. */
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

/** It has its slot until it is settled, also for a program that waits no more. */
async function begin(
  { uploads, schemas, through }: AddDeps,
  source: AddSource,
  { signal, schema }: AddOptions,
): Promise<{ readonly cid: CID }> {
  if (through !== undefined) {
    const what = `this gateway is in thin mode (upload.through) and keeps no uploads: add to ${through} itself`
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
