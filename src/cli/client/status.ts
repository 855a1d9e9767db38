// `cidgate status`: what the admin address of a running gateway says, in words; with --watch again and again.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Given } from '../command.ts'
import { UsageError } from '../usage.ts'
import { type Answer, type Connection, connect, wordsOf } from './connection.ts'
import { failureLines, statusLines, type Told } from './status-lines.ts'

const intervalMs = 2000

export async function statusCommand(given: Given): Promise<number> {
  const { values, io } = given
  if (values['watch'] && values['failures'])
    throw new UsageError('status: --watch shows the state; leave out --failures')
  const connection = connect(given, 'admin')
  try {
    if (values['watch']) return await watch(given, connection)
    const status = await read(connection, values['failures'] === true)
    if (values['failures'])
      for (const one of values['json']
        ? (status.failures ?? []).map((one) => JSON.stringify(one))
        : failureLines(status.failures ?? []))
        io.stdout.write(`${one}\n`)
    else io.stdout.write(values['json'] ? jsonOf(status) : textOf(statusLines(connection.at, status, Date.now())))
    return status.ready ? 0 : 1
  } finally {
    await connection.close()
  }
}

const textOf = (lines: readonly string[]): string => `${lines.join('\n')}\n`

function jsonOf({ history: _history, failures: _failures, ...facts }: Told): string {
  return `${JSON.stringify({ ...facts, waiting: facts.journal?.open })}\n`
}

/** Until it is interrupted, or its reader leaves. A terminal is drawn anew; elsewhere each state follows the one before. */
async function watch({ values, io }: Given, connection: Connection): Promise<number> {
  const { stdout } = io
  const isTerminal = 'isTTY' in stdout && stdout.isTTY === true
  const left = new AbortController()
  stdout.once('close', () => left.abort())
  stdout.on('error', () => left.abort())
  let before: { readonly at: number; readonly total: number } | undefined
  let isReady = false
  while (!left.signal.aborted) {
    let text: string
    try {
      const status = await read(connection, false)
      isReady = status.ready
      const now = { at: performance.now(), total: status.requests?.total ?? 0 }
      const perSecond = before && Math.max(0, (now.total - before.total) / ((now.at - before.at) / 1000))
      before = now
      text = values['json'] ? jsonOf(status) : textOf(statusLines(connection.at, status, Date.now(), perSecond))
    } catch (error) {
      isReady = false
      before = undefined
      text = `${connection.at}: no answer: ${error instanceof Error ? error.message : String(error)}\n`
      if (values['json']) text = `${JSON.stringify({ error: text.trim() })}\n`
    }
    // Each line is cleared behind its end, and the screen behind the last: nothing flickers.
    stdout.write(isTerminal && !values['json'] ? `\u001b[H${text.replaceAll('\n', '\u001b[K\n')}\u001b[J` : text)
    await sleep(intervalMs, undefined, { signal: left.signal }).catch(() => {})
  }
  return isReady ? 0 : 1
}

async function read(connection: Connection, isWhole: boolean): Promise<Told> {
  const answer = await connection.ask('/status')
  const isTold = answer.statusCode === 200
  if (isTold || isWhole) return said<Told>(answer, [200])
  await answer.body.dump()
  return said<Told>(await connection.ask('/readyz'), [200, 503])
}

async function said<Said>(answer: Answer, statuses: readonly number[]): Promise<Said> {
  const text = await answer.body.text()
  if (!statuses.includes(answer.statusCode))
    throw new Error(`${answer.path}: ${wordsOf(answer.statusCode, { detail: text.slice(0, 300) })}`)
  try {
    return JSON.parse(text) as Said
  } catch {
    throw new Error(`${answer.path} is not what a gateway says; is that its admin address?`)
  }
}
