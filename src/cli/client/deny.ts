// `cidgate deny`: a takedown at every instance that is named. What one of them cannot do is said, and the others do theirs.
import type { TakenDown } from '../../upload/pins/told.ts'
import type { Given } from '../command.ts'
import { connect, problemOf, wordsOf } from './connection.ts'

export async function denyCommand(given: Given): Promise<number> {
  const { values, io, positionals } = given
  const named = values['admin'] ?? io.environment['CIDGATE_ADMIN_URL']
  const places = typeof named === 'string' && named !== '' ? named.split(',').map((one) => one.trim()) : [undefined]
  let failed = 0
  for (const admin of places) {
    const connection = connect({ ...given, values: { ...values, admin } }, 'admin')
    const { at } = connection
    try {
      for (const cid of positionals) {
        const done = await takenDown(given, connection, cid).catch((error: unknown) => String(error))
        const isGone = typeof done !== 'string' && done.isGone
        if (!isGone) failed++
        if (values['json'])
          io.stdout.write(`${JSON.stringify({ at, cid, ...(typeof done === 'string' ? { error: done } : done) })}\n`)
        else io.stdout.write(`${at}  ${cid}  ${typeof done === 'string' ? done : lineOf(done)}\n`)
      }
    } finally {
      await connection.close()
    }
  }
  return failed > 0 ? 1 : 0
}

async function takenDown({ values }: Given, { ask }: ReturnType<typeof connect>, cid: string): Promise<TakenDown> {
  const query = new URLSearchParams(values['legal'] ? { status: '451' } : {})
  if (typeof values['reason'] === 'string') query.set('reason', values['reason'])
  const path = `/deny/${encodeURIComponent(cid.replace(/^(\/ipfs\/|ipfs:\/\/)/, ''))}?${query}`
  const answer = await ask(path, { method: 'POST' })
  if (answer.statusCode === 200) return (await answer.body.json()) as TakenDown
  throw new Error(wordsOf(answer.statusCode, await problemOf(answer)))
}

function lineOf({ pins, blocks, kept, failures }: TakenDown): string {
  const told = pins?.providers.map(({ provider, outcome, why }) =>
    why === undefined ? `${provider} ${outcome}` : `${provider} ${outcome} (${why})`,
  )
  const stays = kept > 0 ? [`${kept} kept that other pins need`] : []
  return ['denied', ...(told ?? ['not pinned']), `${blocks} blocks purged`, ...stays, ...failures].join(', ')
}
