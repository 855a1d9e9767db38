// The context of every command of Kubo's RPC, and the parsing of its arguments.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import type { ContentPath } from '../../content/entity.ts'
import { parsePath } from '../../content/path.ts'
import { Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Retrieval, Session } from '../../retrieval/session.ts'
import type { UploadDoor, Uploader } from '../../upload/quota/door.ts'
import type { Reach } from '../add/this-machine.ts'
import type { Tokens } from '../add/tokens.ts'
import type { Limits } from '../limits/limits.ts'
import type { RequestContext } from '../wire/request-context.ts'
import type { Respond } from '../wire/respond.ts'
import { cutWhenStalled, type WriteOptions } from '../wire/write.ts'

export type KuboDeps = WriteOptions & {
  readonly uploads: UploadDoor
  readonly retrieval: Retrieval
  readonly tokens: Tokens
  readonly reach: Reach
  readonly version: string
  /** Names, fastest first. */
  readonly tiers: readonly string[]
  readonly clientOf: (request: IncomingMessage) => Uploader
  readonly limits: Pick<Limits, 'charge'>
  readonly respond: Respond
  readonly log: Log
}

export type KuboCall = Pick<RequestContext, 'request' | 'response' | 'signal'> & {
  readonly query: URLSearchParams
  readonly session: Session
  readonly deps: KuboDeps
}

export function sendJson({ response, deps }: Pick<KuboCall, 'response' | 'deps'>, ...lines: readonly unknown[]): void {
  response.setHeader('Content-Type', 'application/json')
  response.writeHead(200)
  response.end(lines.map((line) => `${JSON.stringify(line)}\n`).join(''))
  cutWhenStalled(response, deps.stalledMs)
}

/** The single `arg` that most commands have. */
export function argOf(query: URLSearchParams): string {
  const [arg, ...more] = argsOf(query)
  if (more.length > 0) throw badCall('argument "ipfs-path" is required once')
  return arg
}

/** One or more `arg`s, without an optional prefix of the CID. */
export function argsOf(query: URLSearchParams): [string, ...string[]] {
  const [first, ...more] = query.getAll('arg').map(bare)
  if (first === undefined) throw badCall('argument "ipfs-path" is required')
  return [first, ...more]
}

const bare = (arg: string): string => arg.replace(/^\/?ipfs\//, '').replace(/^ipfs:\/\//, '')

/** Kubo's arguments are plain text, while a path is percent-encoded. */
export const pathOf = (arg: string): ContentPath =>
  parsePath(
    arg
      .split('/')
      .map((segment) => encodeURIComponent(segment))
      .join('/'),
  )

/** Repeatable options. */
const lists: readonly string[] = ['arg', 'ignore']

/** The options of a request by name. */
export type GivenOptions = ReadonlyMap<string, string>

/** Parses options as Kubo does: by name or alias, each once. Unknown options are ignored. */
export function optionsIn(query: URLSearchParams, aliases: Readonly<Record<string, string>>): GivenOptions {
  const given = new Map<string, string>()
  for (const [key, value] of query) {
    const name = Object.hasOwn(aliases, key) ? (aliases[key] as string) : key
    if (lists.includes(name)) continue
    if ((given.get(name) ?? value) !== value) throw badCall(`${name} is said twice, and not the same`)
    given.set(name, value)
  }
  return given
}

/** Like Go's ParseBool; an option without a value is on. */
export function isOn(given: GivenOptions, name: string, otherwise: boolean): boolean {
  const value = given.get(name)?.toLowerCase()
  if (value === undefined) return otherwise
  if (['', 'true', 't', '1'].includes(value)) return true
  if (['false', 'f', '0'].includes(value)) return false
  throw badCall(`${name}=${value} is not true or false`)
}

export const badCall = (message: string): Failure => new Failure('malformed', message, { source: 'client' })

export const notDone = (what: string, why: string): Failure => badCall(`${what} is not supported: ${why}. Leave it out`)

/** Refuses booleans for which only false is supported. */
export function refuseOn(given: GivenOptions, off: Readonly<Record<string, string>>): void {
  for (const [name, why] of Object.entries(off)) if (isOn(given, name, false)) throw notDone(`${name}=true`, why)
}

/** Refuses other values than these; empty counts as absent. */
export function refuseOthers(given: GivenOptions, only: Readonly<Record<string, readonly string[]>>): void {
  for (const [name, values] of Object.entries(only)) {
    const value = given.get(name)
    if (value && !values.includes(value.toLowerCase()))
      throw notDone(`${name}=${value}`, `it is ${values.join(' or ')}`)
  }
}

/** Formats CIDs in the response: unchanged, or as version 1. */
export function spellingIn(given: GivenOptions): (cid: CID) => string {
  refuseOthers(given, { encoding: ['json'], 'cid-base': ['base32'] })
  const isUpgraded = Boolean(given.get('cid-base')) || isOn(given, 'upgrade-cidv0-in-output', false)
  return (cid) => (isUpgraded ? cid.toV1() : cid).toString()
}
