// `cidgate status`: shows the state of a running gateway from its admin address.
import type { Given } from '../command.ts'
import { type Answer, connect, wordsOf } from './connection.ts'
import { failureLines, statusLines, type Told } from './status-lines.ts'

export async function statusCommand(given: Given): Promise<number> {
  const { values, io } = given
  const connection = connect(given, 'admin')
  try {
    const answer = await connection.ask('/status')
    const isTold = answer.statusCode === 200
    if (values['failures'] && !isTold) await read(answer, [200])
    if (!isTold) await answer.body.dump()
    const status = isTold
      ? await read<Told>(answer, [200])
      : await read<Told>(await connection.ask('/readyz'), [200, 503])
    const { history: _, failures = [], ...facts } = status
    if (values['failures'])
      for (const one of values['json'] ? failures.map((one) => JSON.stringify(one)) : failureLines(failures))
        io.stdout.write(`${one}\n`)
    else if (values['json']) io.stdout.write(`${JSON.stringify({ ...facts, waiting: status.journal?.open })}\n`)
    else io.stdout.write(`${statusLines(connection.at, status, Date.now()).join('\n')}\n`)
    return status.ready ? 0 : 1
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
    throw new Error(`${answer.path} is not what a gateway says; is that its admin address?`)
  }
}
