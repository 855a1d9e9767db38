// `cidgate why`: shows the source of a response, or the upstreams that were asked and their
// answers.
import type { Given } from '../command.ts'
import { connect, pathOf, problemOf } from './connection.ts'

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

export async function whyCommand(given: Given, named: string): Promise<number> {
  const { values, io } = given
  const connection = connect(given)
  try {
    const path = pathOf(named)
    const began = performance.now()
    const answer = await connection.ask(path)
    const ms = Math.round(performance.now() - began)
    const { statusCode: status, headers } = answer
    const isFine = status < 400
    // The head is enough; skip the body of a large file.
    if (isFine) answer.body.on('error', () => {}).destroy()
    const problem = isFine ? {} : await problemOf(answer)
    if (values['json'])
      io.stdout.write(`${JSON.stringify({ path, status, ms, headers, ...(isFine ? {} : { problem }) })}\n`)
    else {
      const { title, detail, requestId, attempts = [] } = problem
      const heads = shown.flatMap((name) => (headers[name] === undefined ? [] : [`  ${name}: ${headers[name]}`]))
      const said = [title, detail].filter((one) => one !== undefined).map((one) => `  ${one}`)
      const asked = attempts.map(({ upstream, outcome, ms: after }) => `  ${upstream}: ${outcome}, after ${after} ms`)
      const id = requestId === undefined ? [] : [`  request ${requestId}: the log of the gateway names it`]
      io.stdout.write(`${[`${path}: ${status} after ${ms} ms`, ...said, ...heads, ...asked, ...id].join('\n')}\n`)
    }
    return isFine ? 0 : 1
  } finally {
    await connection.close()
  }
}
