// The connection of a command to a gateway: its address, and requests with timeouts.

import type { Writable } from 'node:stream'
import { Agent, type Dispatcher, request } from 'undici'
import { type Config, loadConfig } from '../../config/load.ts'
import { isUnix } from '../../config/values.ts'
import { causeCode, wordsOf } from '../../core/failure.ts'
import { type Given, UsageError } from '../command.ts'

/** Longer than the gateway's own timeouts for a miss or an upload. */
const headersMs = 330_000
/** The connection is dropped after this time without data. */
const bodyTimeoutMs = 60_000

export type Answer = Dispatcher.ResponseData & { readonly path: string }
export interface Connection {
  /** For messages: host and port, or the path of the socket. */
  readonly at: string
  /** Rejects if there is no response; the caller handles the status. */
  ask(path: string, options?: Asking): Promise<Answer>
  readonly progress: ProgressLine
  /** Prints a result: as JSON with `--json`, otherwise the line, if there is one. */
  print(facts: object, line: string | undefined): void
}
export type Asking = Partial<Pick<Dispatcher.RequestOptions, 'method' | 'headers' | 'body'>>

type AddressName = 'listen' | 'admin'
const variable = { listen: 'CIDGATE_GATEWAY', admin: 'CIDGATE_ADMIN_URL' } as const
const option = { listen: 'gateway', admin: 'admin' } as const

/** Runs the work of a command with a connection, which ends with the work. */
export async function connected(
  { values, io }: Given,
  to: AddressName,
  work: (gateway: Connection) => Promise<number>,
): Promise<number> {
  const named = values[option[to]] ?? (io.environment[variable[to]] || undefined)
  const place =
    typeof named === 'string' ? placeOf(named) : fromConfig(loadConfig(configOf(values), io.environment), to)
  const { url, socketPath } = place
  const at = socketPath === undefined ? url.host : `unix:${socketPath}`
  const progress = createProgress(io.stderr)
  const token = to === 'admin' ? io.environment['CIDGATE_ADMIN_TOKEN'] : undefined
  const agent = new Agent({
    headersTimeout: headersMs,
    bodyTimeout: bodyTimeoutMs,
    connect: { timeout: 10_000, ...(socketPath !== undefined && { socketPath }) },
  })
  const gateway: Connection = {
    at,
    progress,
    async ask(path, { method = 'GET', headers = {}, body = null } = {}) {
      try {
        const answer = await request(new URL(url.pathname.replace(/\/$/, '') + path, url), {
          dispatcher: agent,
          method,
          headers: token ? { authorization: `Bearer ${token}`, ...(headers as Record<string, string>) } : headers,
          body,
        })
        return Object.assign(answer, { path })
      } catch (error) {
        const why = wordsOf(error) || causeCode(error)
        throw new Error(
          `no answer from ${socketPath === undefined ? url.origin : at}: ${why}; is the gateway running, and is --${option[to]} right?`,
        )
      }
    },
    print(facts, line) {
      progress.end()
      if (values['json']) io.stdout.write(`${JSON.stringify(facts)}\n`)
      else if (line !== undefined) io.stdout.write(`${line}\n`)
    },
  }
  try {
    return await work(gateway)
  } finally {
    progress.end()
    await agent.destroy()
  }
}

const configOf = ({ config }: Given['values']): string | undefined => (typeof config === 'string' ? config : undefined)

type Place = { readonly url: URL; readonly socketPath?: string }

const overSocket = (socketPath: string): Place => ({ url: new URL('http://localhost'), socketPath })

function placeOf(text: string): Place {
  if (/^unix:\/./.test(text)) return overSocket(text.slice('unix:'.length))
  const url = URL.parse(text)
  if (!url || !/^https?:$/.test(url.protocol))
    throw new UsageError(`${text} is no URL; expected one such as http://127.0.0.1:8080, or unix:/path/to.sock`)
  return { url }
}

/** A wildcard address is reached by loopback. */
function fromConfig(config: Config, to: AddressName): Place {
  const address = config[to]
  if (!address) throw new UsageError('the configuration has no admin address; name it with --admin')
  if (isUnix(address)) return overSocket(address.path)
  const { host, port } = address
  const near = host === '0.0.0.0' ? '127.0.0.1' : host === '::' ? '::1' : host
  return { url: new URL(`http://${near.includes(':') ? `[${near}]` : near}:${port}`) }
}

/**
 * Converts `ipfs://…`, a CID or a path to the path of a URL. Encodes anything that is not a path
 * yet.
 */
export function pathOf(text: string): string {
  const scheme = /^(ipfs|ipns):\/\//.exec(text)
  const path = scheme
    ? `/${scheme[1]}/${text.slice(scheme[0].length)}`
    : /^\/ip[fn]s\//.test(text)
      ? text
      : `/ipfs/${text}`
  return path.replaceAll(/[^\w\-.~!$&'()*+,;=:@/%]/gu, (letter) => encodeURIComponent(letter))
}

type ProblemBody = {
  readonly title?: string
  readonly detail?: string
  readonly requestId?: string
  readonly attempts?: readonly { readonly upstream: string; readonly outcome: string; readonly ms: number }[]
}

/** Parses an error response of a gateway. Other servers have formats of their own. */
export async function problemOf({ body }: Answer): Promise<ProblemBody> {
  const text = (await body.text()).slice(0, 20_000)
  try {
    const said: unknown = JSON.parse(text)
    if (typeof said === 'object' && said !== null) return said as ProblemBody
  } catch {
    // not JSON
  }
  return { detail: text.trim().slice(0, 300) }
}

/** The status and the reason of an error response. */
export const refusal = async (answer: Answer): Promise<string> =>
  statusWords(answer.statusCode, await problemOf(answer))

export function statusWords(status: number, { title, detail }: ProblemBody): string {
  return [String(status), title, detail].filter((one) => one !== undefined && one !== '').join(': ')
}

export type ProgressLine = {
  /** Sets the total size. */
  of(bytes: number | undefined): void
  /** Passes bytes through and counts them. */
  counting<Piece extends Uint8Array>(source: AsyncIterable<Piece>): AsyncIterable<Piece>
  say(line: string): void
  /** Erases the line. */
  end(): void
}

const everyMs = 200

function createProgress(stream: Writable & { readonly isTTY?: boolean }): ProgressLine {
  let all: number | undefined
  let came = 0
  let saidAt = 0
  let isShown = false

  /** The last update is always shown: a provider may take its time with what has arrived. */
  function say(line: string, isLast = false): void {
    const now = performance.now()
    if (!stream.isTTY || (now - saidAt < everyMs && !isLast)) return
    saidAt = now
    isShown = true
    stream.write(`\r\u001b[K${line}`)
  }

  return {
    of(bytes) {
      all = bytes
      came = 0
    },
    async *counting(source) {
      for await (const piece of source) {
        came += piece.byteLength
        say(all === undefined ? sizeOf(came) : `${barOf(came, all)} ${sizeOf(came)} of ${sizeOf(all)}`, came === all)
        yield piece
      }
    },
    say: (line) => say(line),
    end() {
      if (isShown) stream.write('\r\u001b[K')
      isShown = false
    },
  }
}

const barWidth = 24

/** Compressed responses and growing files exceed the announced size. */
function barOf(came: number, all: number): string {
  const share = all === 0 ? 1 : Math.min(1, came / all)
  const full = Math.floor(share * barWidth)
  return `[${'#'.repeat(full)}${'.'.repeat(barWidth - full)}] ${String(Math.floor(share * 100)).padStart(3)} %`
}

export function sizeOf(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  const power = bytes < 1024 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10))
  return `${(bytes / 1024 ** power).toFixed(power === 0 ? 0 : 1)} ${units[power]}`
}
