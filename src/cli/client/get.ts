// `cidgate get` and `cidgate export`: writes a file, or the blocks below a path, to a file or to
// standard output.
import { createWriteStream } from 'node:fs'
import { rename, rm, stat } from 'node:fs/promises'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { Given } from '../command.ts'
import { UsageError } from '../usage.ts'
import { connect, pathOf, problemOf, wordsOf } from './connection.ts'
import { createProgress, type ProgressLine } from './progress.ts'

export async function getCommand(given: Given, named: string, format?: 'car'): Promise<number> {
  const { values, io } = given
  const to = values['output']
  if (values['json'] && typeof to !== 'string')
    throw new UsageError('--json takes --output as well: what is printed without it is the content')
  const connection = connect(given)
  const progress = createProgress(io.stderr)
  try {
    const path = pathOf(named)
    const answer = await connection.ask(format ? `${path}${path.includes('?') ? '&' : '?'}format=${format}` : path)
    const { statusCode, headers, body } = answer
    if (statusCode !== 200) throw new Error(`${path}: ${wordsOf(statusCode, await problemOf(answer))}`)
    progress.of(Number(headers['content-length']) || undefined)
    if (typeof to === 'string') {
      await intoFile(body, to, progress)
      const type = headers['content-type']
      if (values['json']) io.stdout.write(`${JSON.stringify({ path, file: to, bytes: (await stat(to)).size, type })}\n`)
    } else await pipeline(body, progress.counting, io.stdout, { end: false }).catch(ifReaderIsThere)
    return 0
  } finally {
    progress.end()
    await connection.close()
  }
}

/** A program that reads our output may stop early, as `head` does. */
function ifReaderIsThere(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE') throw error
}

/** Renamed to its name once complete, so that nobody takes a part for the file. */
async function intoFile(body: Readable, file: string, progress: ProgressLine): Promise<void> {
  const part = `${file}.part-${process.pid}`
  try {
    await pipeline(body, progress.counting, createWriteStream(part))
    await rename(part, file)
  } catch (error) {
    await rm(part, { force: true })
    throw error
  }
}
