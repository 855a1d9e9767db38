// `cidgate status`: what the admin address of a running gateway says, in words.
import type { Readiness } from '../../admin/readiness.ts'
import type { Given } from '../command.ts'
import { type Answer, connect, wordsOf } from './connection.ts'

type Waiting = { readonly open: number; readonly uploads: readonly { readonly cid: string }[] }

export async function statusCommand(given: Given): Promise<number> {
  const { values, io } = given
  const connection = connect(given, 'admin')
  try {
    const ready = await read<Readiness>(await connection.ask('/readyz'), [200, 503])
    // Thin mode has no uploads of its own.
    const waiting = await read<Waiting>(await connection.ask('/uploads'), [200, 401, 404])
    if (values['json']) io.stdout.write(`${JSON.stringify({ ...ready, waiting: waiting.open })}\n`)
    else io.stdout.write(`${linesOf(connection.at, ready, waiting).join('\n')}\n`)
    return ready.ready ? 0 : 1
  } finally {
    await connection.close()
  }
}

async function read<Said>(answer: Answer, statuses: readonly number[]): Promise<Said> {
  const text = await answer.body.text()
  if (!statuses.includes(answer.statusCode))
    throw new Error(`${answer.path}: ${wordsOf(answer.statusCode, { detail: text.slice(0, 300) })}`)
  try {
    return JSON.parse(text) as Said
  } catch {
    if (answer.statusCode === 404 || answer.statusCode === 401) return {} as Said
    throw new Error(`${answer.path} is not what a gateway says; is that its admin address?`)
  }
}

function linesOf(at: string, { ready, draining, uploads, checks }: Readiness, { open }: Partial<Waiting>): string[] {
  const state = draining ? 'stopping' : ready ? 'ready' : 'not ready'
  const taken = uploads === undefined ? 'not known yet' : uploads ? 'yes' : 'no'
  return [
    `${at}: ${state}; uploads can be confirmed: ${taken}; ${open ?? 'not told how many'} wait for a provider`,
    ...checks.map(({ name, ok, why }) => `  ${ok ? 'ok ' : 'BAD'} ${name}${ok || why === undefined ? '' : `: ${why}`}`),
  ]
}
