// Reads the answer of thin mode's service: the CIDs that the service says it holds, or a Failure that says why it holds none.
import type { IncomingMessage } from 'node:http'
import { CID } from 'multiformats/cid'
import type { Failure, FailureKind } from '../../core/failure.ts'
import { parseRetryAfter } from '../../core/wire/http.ts'
import type { FailureClass } from '../../store/standing.ts'
import { nameOf } from '../stored-upload.ts'

export type TargetFailure = (
  kind: FailureClass,
  why: string,
  more?: {
    readonly cause?: unknown
    readonly retryAfterMs?: number | undefined
    /** The kind of a refusal that the gateway hands on to the client. Otherwise the service is `broken`. */
    readonly as?: FailureKind | undefined
  },
) => Failure

/** Refusals that the client can act on. The service's own words stay here: they may repeat our token. */
const handedOn: Readonly<Record<number, { readonly as: FailureKind; readonly why: string }>> = {
  401: { as: 'refused', why: 'it wants a token, and does not take the one that this gateway sends' },
  413: { as: 'too-large', why: 'the upload is larger than it takes' },
  429: { as: 'throttled', why: 'it asks for fewer uploads' },
}

/** A line or a CID for each file. */
const mostAnswerBytes = { files: 1024 * 1024, directory: 16 * 1024 * 1024 } as const
export type ForwardedKind = keyof typeof mostAnswerBytes

export async function readAnswer(
  response: IncomingMessage,
  {
    isKubo,
    kind,
    failure,
    now,
  }: {
    readonly isKubo: boolean
    readonly kind: ForwardedKind
    readonly failure: TargetFailure
    readonly now: number
  },
): Promise<ReadonlySet<string>> {
  const status = response.statusCode ?? 0
  // Fail at once: a service that refuses often stops reading, and then the connection breaks.
  if (status < 200 || status > 299) {
    const { as, why } = handedOn[status] ?? {}
    const retryAfterMs = parseRetryAfter(response.headers['retry-after'], now)
    throw failure(classOf(status), `it answered ${status}${why ? `: ${why}` : ''}`, { retryAfterMs, as })
  }
  const pieces: Buffer[] = []
  let bytes = 0
  for await (const piece of response as AsyncIterable<Buffer>) {
    bytes += piece.byteLength
    if (bytes > mostAnswerBytes[kind]) throw failure('content', 'its answer is longer than an answer can be')
    pieces.push(piece)
  }
  if (response.trailers['x-stream-error'] !== undefined) throw failure('transient', 'it failed behind its answer')
  try {
    const text = Buffer.concat(pieces).toString()
    const said = isKubo
      ? text
          .split('\n')
          .filter(Boolean)
          .map((line) => JSON.parse(line).Hash)
      : JSON.parse(text).cids
    return new Set((said as unknown[]).flatMap(named))
  } catch (error) {
    throw failure('content', 'its answer is not of the form that was expected', { cause: error })
  }
}

function named(said: unknown): string[] {
  const text = /^(?:\/ipfs\/|ipfs:\/\/|ipfs\/)?([0-9A-Za-z]+)/.exec(typeof said === 'string' ? said : '')?.[1]
  return text === undefined ? [] : [nameOf(CID.parse(text))]
}

function classOf(status: number): FailureClass {
  if (status === 401 || status === 403) return 'auth'
  if (status === 402) return 'quota'
  return [408, 425, 429].includes(status) || status >= 500 || status < 400 ? 'transient' : 'content'
}
