// What every command of Kubo's RPC gets, and how its arguments are read.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { ResolveOptions } from '../content/resolve.ts'
import { Failure } from '../failure.ts'
import type { Retrieval, Session } from '../retrieval/session.ts'
import type { Uploads } from '../upload/uploads.ts'
import type { Tokens } from './tokens.ts'
import type { WriteOptions } from './write.ts'

export type KuboDeps = WriteOptions & {
  readonly uploads: Uploads
  readonly retrieval: Retrieval
  readonly tokens: Tokens
  readonly visit: NonNullable<ResolveOptions['visit']>
  readonly version: string
  readonly onError: (error: unknown) => void
}

export type Call = {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly query: URLSearchParams
  readonly session: Session
  readonly signal: AbortSignal
  readonly deps: KuboDeps
}

export function sendJson(response: ServerResponse, ...lines: readonly unknown[]): void {
  response.setHeader('Content-Type', 'application/json')
  response.writeHead(200)
  response.end(lines.map((line) => `${JSON.stringify(line)}\n`).join(''))
}

/** The one `arg` that most commands have. */
export function argOf(query: URLSearchParams): string {
  const [arg, ...more] = query.getAll('arg')
  if (arg === undefined || more.length > 0)
    throw badCall(`argument "ipfs-path" is required${more.length > 0 ? ' once' : ''}`)
  return arg.replace(/^\/?ipfs\//, '').replace(/^ipfs:\/\//, '')
}

export function isTrue(query: URLSearchParams, name: string, otherwise: boolean): boolean {
  const value = query.get(name)
  if (value === null) return otherwise
  if (!['true', 'false', '', '1', '0'].includes(value)) throw badCall(`${name} is true or false`)
  return value !== 'false' && value !== '0'
}

export const badCall = (message: string): Failure => new Failure('malformed', message, { source: 'client' })
