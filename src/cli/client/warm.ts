// `cidgate warm`: reads everything below each path, so that the tiers hold it.
import { appendFile, readFile, stat } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseCid } from '../../core/cid.ts'
import type { Given } from '../command.ts'
import { UsageError } from '../usage.ts'
import { type Connection, connect, pathOf, problemOf, wordsOf } from './connection.ts'
import { createProgress, sizeOf } from './progress.ts'

const tries = 3
const maxWaitMs = 30_000

export async function warmCommand(given: Given): Promise<number> {
  const { values, io } = given
  const concurrency = Number(values['concurrency'] ?? 4)
  if (!Number.isInteger(concurrency) || concurrency < 1 || concurrency > 64)
    throw new UsageError('--concurrency takes a number from 1 to 64')
  const done = typeof values['resume-file'] === 'string' ? values['resume-file'] : undefined
  const paths = await pathsOf(given, done)
  const connection = connect(given)
  const progress = createProgress(io.stderr)
  const say = (facts: object, line: string): void => {
    progress.end()
    io.stdout.write(values['json'] ? `${JSON.stringify(facts)}\n` : `${line}\n`)
  }
  let ended = 0
  let failed = 0
  const worker = async (): Promise<void> => {
    for (let path = paths.shift(); path !== undefined; path = paths.shift()) {
      try {
        const bytes = await readAll(connection, path)
        if (done !== undefined) await appendFile(done, `${path}\n`)
        say({ path, bytes }, `${path}: ${sizeOf(bytes)}`)
      } catch (error) {
        failed++
        const why = error instanceof Error ? error.message : String(error)
        say({ path, error: why }, `${path}: ${why}`)
      }
      progress.say(`${++ended} done, ${paths.length} to do`)
    }
  }
  try {
    await Promise.all(Array.from({ length: concurrency }, worker))
  } finally {
    progress.end()
    await connection.close()
  }
  if (failed > 0) io.stderr.write(`cidgate: ${failed} could not be read whole\n`)
  return failed > 0 ? 1 : 0
}

async function pathsOf({ values, positionals }: Given, done: string | undefined): Promise<string[]> {
  const linesOf = async (file: string): Promise<string[]> => {
    const lines = (await readFile(file, 'utf8')).split('\n').map((line) => line.trim())
    return lines.filter((line) => line !== '' && !line.startsWith('#'))
  }
  if (positionals.length === 0 && values['list'] === undefined) throw new UsageError('warm takes a path, or a list')
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
  for (let turn = 1; ; turn++) {
    const answer = await connection.ask(`${path}?format=car`)
    if (answer.statusCode === 200) {
      let bytes = 0
      for await (const piece of answer.body) bytes += (piece as Buffer).byteLength
      return bytes
    }
    const problem = await problemOf(answer)
    const seconds = Number(answer.headers['retry-after'])
    if (turn === tries || !(seconds >= 0)) throw new Error(wordsOf(answer.statusCode, problem))
    await sleep(Math.min(seconds * 1000, maxWaitMs))
  }
}
