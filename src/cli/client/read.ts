// The commands that read from a running gateway: `get` and `export` write content to a file or to
// standard output, `why` shows the source of a response, `warm` reads so that the tiers hold it.
import { createWriteStream } from 'node:fs'
import { appendFile, lstat, readFile, rename, rm, stat } from 'node:fs/promises'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseCid } from '../../core/cid.ts'
import { orIfGone } from '../../core/disk/files.ts'
import { wordsOf } from '../../core/failure.ts'
import { type Given, UsageError } from '../command.ts'
import { type Connection, connected, type ProgressLine, pathOf, problemOf, refusal, sizeOf } from './connection.ts'

export async function getCommand(given: Given, named: string, format?: 'car'): Promise<number> {
  const { values, io } = given
  const to = values['output']
  if (values['json'] && typeof to !== 'string')
    throw new UsageError('--json requires --output: without it, the content itself goes to standard output')
  return connected(given, 'listen', async ({ ask, progress, print }) => {
    const path = pathOf(named)
    const answer = await ask(format ? `${path}${path.includes('?') ? '&' : '?'}format=${format}` : path)
    const { headers, body } = answer
    if (answer.statusCode !== 200) throw new Error(`${path}: ${await refusal(answer)}`)
    progress.of(Number(headers['content-length']) || undefined)
    if (typeof to === 'string') {
      await intoFile(body, to, progress)
      print({ path, file: to, bytes: (await stat(to)).size, type: headers['content-type'] }, undefined)
    } else await pipeline(body, progress.counting, io.stdout, { end: false }).catch(ifReaderIsThere)
    return 0
  })
}

/** A program that reads our output may stop early, as `head` does. */
function ifReaderIsThere(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE') throw error
}

/** Renamed to its name once complete, so that nobody takes a part for the file. */
async function intoFile(body: Readable, file: string, progress: ProgressLine): Promise<void> {
  // A device or a pipe is written to; a link stays one.
  const there = await orIfGone(lstat(file), undefined)
  if (there && !there.isFile()) return pipeline(body, progress.counting, createWriteStream(file))
  const part = `${file}.part-${process.pid}`
  try {
    await pipeline(body, progress.counting, createWriteStream(part))
    await rename(part, file)
  } catch (error) {
    await rm(part, { force: true })
    throw error
  }
}

const shown = [
  'cache-status',
  'content-type',
  'content-length',
  'etag',
  'cache-control',
  'retry-after',
  'x-ipfs-roots',
  'location',
] as const

export const whyCommand = (given: Given, named: string): Promise<number> =>
  connected(given, 'listen', async ({ ask, print }) => {
    const path = pathOf(named)
    const began = performance.now()
    const answer = await ask(path)
    const ms = Math.round(performance.now() - began)
    const { statusCode: status, headers } = answer
    const isFine = status < 400
    // The head is enough; skip the body of a large file.
    if (isFine) answer.body.on('error', () => {}).destroy()
    const problem = isFine ? {} : await problemOf(answer)
    const { title, detail, requestId, attempts = [] } = problem
    const heads = shown.flatMap((name) => (headers[name] === undefined ? [] : [`  ${name}: ${headers[name]}`]))
    const said = [title, detail].filter((one) => one !== undefined).map((one) => `  ${one}`)
    const asked = attempts.map(({ upstream, outcome, ms: after }) => `  ${upstream}: ${outcome}, after ${after} ms`)
    const id = requestId === undefined ? [] : [`  request ${requestId}: the log of the gateway names it`]
    const lines = [`${path}: ${status} after ${ms} ms`, ...said, ...heads, ...asked, ...id]
    print({ path, status, ms, headers, ...(isFine ? {} : { problem }) }, lines.join('\n'))
    return isFine ? 0 : 1
  })

const tries = 3
const maxWaitMs = 30_000

export async function warmCommand(given: Given): Promise<number> {
  const { values, io } = given
  const concurrency = Number(values['concurrency'] ?? 4)
  if (!Number.isInteger(concurrency) || concurrency < 1 || concurrency > 64)
    throw new UsageError('--concurrency must be a number from 1 to 64')
  const done = typeof values['resume-file'] === 'string' ? values['resume-file'] : undefined
  const paths = await pathsOf(given, done)
  return connected(given, 'listen', async (gateway) => {
    let ended = 0
    let failed = 0
    const worker = async (): Promise<void> => {
      for (let path = paths.shift(); path !== undefined; path = paths.shift()) {
        try {
          const bytes = await readAll(gateway, path)
          if (done !== undefined) await appendFile(done, `${path}\n`)
          gateway.print({ path, bytes }, `${path}: ${sizeOf(bytes)}`)
        } catch (error) {
          failed++
          gateway.print({ path, error: wordsOf(error) }, `${path}: ${wordsOf(error)}`)
        }
        gateway.progress.say(`${++ended} done, ${paths.length} to do`)
      }
    }
    await Promise.all(Array.from({ length: concurrency }, worker))
    gateway.progress.end()
    if (failed > 0) io.stderr.write(`cidgate: ${failed} could not be read completely\n`)
    return failed > 0 ? 1 : 0
  })
}

async function pathsOf({ values, positionals }: Given, done: string | undefined): Promise<string[]> {
  const linesOf = async (file: string): Promise<string[]> => {
    const lines = (await readFile(file, 'utf8')).split('\n').map((line) => line.trim())
    return lines.filter((line) => line !== '' && !line.startsWith('#'))
  }
  if (positionals.length === 0 && values['list'] === undefined) throw new UsageError('warm needs a path or a list')
  const listed = typeof values['list'] === 'string' ? await linesOf(values['list']) : []
  const named = await Promise.all(positionals.map(async (one) => ((await isList(one)) ? linesOf(one) : [one])))
  const all = [...named.flat(), ...listed].map(pathOf)
  if (all.length === 0) throw new Error('the list names no path')
  const before = done === undefined ? [] : await linesOf(done).catch(noFileYet)
  return [...new Set(all)].filter((path) => !before.includes(path))
}

/**
 * A name is a list if a file of that name exists, except for content paths; a bare CID is content
 * even if a file has its name.
 */
const isList = async (named: string): Promise<boolean> =>
  !/^(?:\/ip[fn]s\/|ip[fn]s:\/\/)/.test(named) &&
  parseCid(named.split('/')[0] ?? '') === undefined &&
  ((await stat(named).catch(() => undefined))?.isFile() ?? false)

function noFileYet(error: NodeJS.ErrnoException): string[] {
  if (error.code === 'ENOENT') return []
  throw error
}

/** Reads and discards every block below a path. Fails if the response is cut off. */
async function readAll(connection: Connection, path: string): Promise<number> {
  for (let attempt = 1; ; attempt++) {
    const answer = await connection.ask(`${path}?format=car`)
    if (answer.statusCode === 200) {
      let bytes = 0
      for await (const piece of answer.body) bytes += (piece as Buffer).byteLength
      return bytes
    }
    const why = await refusal(answer)
    const seconds = Number(answer.headers['retry-after'])
    if (attempt === tries || !(seconds >= 0)) throw new Error(why)
    await sleep(Math.min(seconds * 1000, maxWaitMs))
  }
}
