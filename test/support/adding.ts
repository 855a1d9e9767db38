// A small server that only takes uploads, over a folder of its own, and clients that speak multipart by hand.
import { existsSync } from 'node:fs'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { createServer, request as httpRequest, type OutgoingHttpHeaders, type Server } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import express from 'express'
import type { CID } from 'multiformats/cid'
import type { Provider } from '../../backends/pinning/contract.ts'
import { createEmbedded, type EmbeddedProvider } from '../../backends/pinning/embedded.ts'
import { blockKey } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import type { Log } from '../../src/core/log.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { createAddRoute } from '../../src/http/add/add.ts'
import { createTokens } from '../../src/http/add/upload-auth.ts'
import { createRespond } from '../../src/http/wire/problem.ts'
import { readContext } from '../../src/http/wire/request.ts'
import { createSchemaChecks } from '../../src/schemas/checks.ts'
import { joinStore } from '../../src/store/open.ts'
import type { Store } from '../../src/store/store.ts'
import { createUploads, type Uploads, type UploadsOptions } from '../../src/upload/uploads.ts'

export type Adding = {
  readonly url: string
  readonly port: number
  readonly data: string
  readonly uploads: Uploads
  readonly store: Store
  readonly embedded: EmbeddedProvider
  /** What went into the tiers, by block key. */
  readonly tiers: Map<string, Uint8Array>
  readonly forgotten: string[]
  readonly log: { event: string; facts: Readonly<Record<string, unknown>> }[]
  readonly server: Server
  close(): Promise<void>
}

export type AddingOptions = Partial<UploadsOptions> & {
  readonly data?: string
  readonly tokens?: readonly string[]
  readonly maxBytes?: number
  /** Beside the embedded one, which comes first unless it is left out. */
  readonly others?: readonly Provider[]
  readonly withoutEmbedded?: boolean
}

export const profile = 'unixfs-v1-2025'

export async function startAdding(options: AddingOptions = {}): Promise<Adding> {
  const data = options.data ?? (await mkdtemp(join(tmpdir(), 'cidgate-add-')))
  const lines: Adding['log'] = []
  const log: Log = (_level, event, facts = {}) => lines.push({ event, facts })
  const clock = options.clock ?? systemClock
  const embedded = createEmbedded({}, { name: 'local', userAgent: 'test', data, folders: processFolders, log, clock })
  const folder = options.folder ?? processFolders.enter(data)
  const { store, leave } = joinStore(folder, { clock: systemClock, log })
  await store.ready
  const tiers = new Map<string, Uint8Array>()
  const forgotten: string[] = []
  const uploads = createUploads({
    profile,
    concurrency: 64,
    maxPendingBytes: 2 ** 30,
    confirm: 1,
    queue: false,
    pinMs: 10_000,
    retrieval: {
      async store(cid: CID, bytes: Uint8Array) {
        tiers.set(blockKey(cid), bytes)
        return []
      },
      forget: (cid: CID) => void forgotten.push(cid.toString()),
      sharedTiers: [],
      bring: async () => {},
    },
    ...options,
    limits: { maxBytes: options.maxBytes ?? 1024 * 1024, idleMs: 2000, minRate: 0, graceMs: 1000, ...options.limits },
    providers: options.providers ?? [...(options.withoutEmbedded ? [] : [embedded]), ...(options.others ?? [])],
    clock,
    log,
    folder,
    store: options.store ?? store,
  })
  const app = express()
  const route = createAddRoute({
    uploads,
    tokens: createTokens(options.tokens ? { tokens: options.tokens } : 'none'),
    reach: { isForThisMachine: false, addressOf: () => '' },
    schemas: createSchemaChecks({ maxBytes: 8 * 1024 * 1024 }),
    // A client says who it is.
    clientOf: ({ headers }) => String(headers['x-client'] ?? ''),
    respond: createRespond({
      mode: 'api',
      stalledMs: 60_000,
      onError: (error) => lines.push({ event: 'internal', facts: { error: String(error) } }),
    }),
  })
  app.all(route.at, (request, response, next) => route.answer(readContext(request, response), next))
  const server = createServer(app)
  server.on('checkContinue', app)
  server.requestTimeout = 0
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    data,
    uploads,
    store,
    embedded,
    tiers,
    forgotten,
    log: lines,
    server,
    async close() {
      const closed = new Promise((resolve) => server.close(resolve))
      server.closeAllConnections()
      await closed
      await uploads.close()
      await embedded.close()
      await leave()
      folder.leave()
      if (options.data === undefined) await rm(data, { recursive: true, force: true })
    },
  }
}

export type Part = {
  readonly name?: string
  readonly fileName?: string
  readonly type?: string
  readonly body: Uint8Array | string
}

export const boundary = 'the-boundary'

export function multipart(parts: readonly Part[], mark = boundary): Buffer {
  const pieces = parts.flatMap(({ name = 'data', fileName, type, body }) => {
    const file = fileName === undefined ? '' : `; filename="${fileName}"`
    const kind = type === undefined ? '' : `\r\nContent-Type: ${type}`
    const head = `--${mark}\r\nContent-Disposition: form-data; name="${name}"${file}${kind}\r\n\r\n`
    return [Buffer.from(head), Buffer.from(body as Uint8Array), Buffer.from('\r\n')]
  })
  return Buffer.concat([...pieces, Buffer.from(`--${mark}--\r\n`)])
}

export type Answer = {
  readonly status: number
  readonly headers: OutgoingHttpHeaders
  readonly body: string
  readonly json: Record<string, unknown>
}

export function post(
  url: string,
  body: Uint8Array | AsyncIterable<Uint8Array>,
  headers: OutgoingHttpHeaders = {},
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const outgoing = httpRequest(
      url,
      {
        method: 'POST',
        agent: false,
        headers: { 'Content-Type': `multipart/form-data; boundary=${boundary}`, ...headers },
      },
      (response) => {
        const pieces: Buffer[] = []
        response.on('data', (piece: Buffer) => pieces.push(piece))
        response.on('error', reject)
        response.on('end', () => {
          const text = Buffer.concat(pieces).toString()
          let json: Record<string, unknown> = {}
          try {
            json = JSON.parse(text) as Record<string, unknown>
          } catch {
            // The answer says so itself.
          }
          resolve({ status: response.statusCode ?? 0, headers: response.headers, body: text, json })
        })
      },
    )
    outgoing.on('error', reject)
    if (body instanceof Uint8Array) outgoing.end(body)
    else void send(outgoing, body).catch(reject)
  })
}

async function send(outgoing: ReturnType<typeof httpRequest>, pieces: AsyncIterable<Uint8Array>): Promise<void> {
  for await (const piece of pieces)
    if (!outgoing.write(piece)) await new Promise((resolve) => outgoing.once('drain', resolve))
  outgoing.end()
}

/** Everything a socket says until it ends. */
export function raw(port: number, write: (socket: Socket) => void): Promise<string> {
  return new Promise((resolve) => {
    const pieces: Buffer[] = []
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true }, () => write(socket))
    socket.on('data', (piece: Buffer) => pieces.push(piece))
    socket.on('error', () => {})
    const done = () => resolve(Buffer.concat(pieces).toString('latin1'))
    socket.on('end', () => {
      done()
      socket.destroy()
    })
    socket.on('close', done)
  })
}

/** Nothing is being received, and nothing goes on behind an answer. */
export async function idle({ uploads, store }: Adding, withinMs = 5000): Promise<void> {
  for (let tries = 0; tries < withinMs / 10; tries++) {
    if (uploads.admission.uploads === 0 && (await store.ledger.waiting()).uploads === 0) return
    await sleep(10)
  }
  throw new Error('uploads are still going on')
}

/** Names of all that lies below a folder; none, where there is no such folder. */
export async function below(folder: string): Promise<string[]> {
  for (;;) {
    try {
      const entries = await readdir(folder, { recursive: true, withFileTypes: true })
      return entries.filter((entry) => entry.isFile()).map(({ name }) => name)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
      // A folder in it that is removed while it is read is no sign that all is gone: it is read again.
      if (!existsSync(folder)) return []
    }
  }
}
