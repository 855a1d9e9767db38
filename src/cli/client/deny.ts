// `cidgate deny`: a takedown at every named instance. A failure at one is reported, and the others
// still apply theirs.
import type { TakenDown } from '../../upload/api-types.ts'
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
        const done = await takenDown(given, connection, cid).catch((error: unknown) => ({ error: wordsOfError(error) }))
        const isDone = 'isGone' in done && done.isGone && done.error === undefined
        if (!isDone) failed++
        if (values['json']) io.stdout.write(`${JSON.stringify({ at, cid, ...done })}\n`)
        else io.stdout.write(`${at}  ${cid}  ${'isGone' in done ? lineOf(done) : done.error}\n`)
      }
    } finally {
      await connection.close()
    }
  }
  return failed > 0 ? 1 : 0
}

/**
 * `error`: the takedown applies, but the gateway could not save the list: the reason, and the next
 * step.
 */
type Done = TakenDown & { readonly error?: string }

async function takenDown({ values }: Given, { ask }: ReturnType<typeof connect>, cid: string): Promise<Done> {
  const query = new URLSearchParams(values['legal'] ? { status: '451' } : {})
  if (typeof values['reason'] === 'string') query.set('reason', values['reason'])
  const path = `/deny/${encodeURIComponent(cid.replace(/^(\/ipfs\/|ipfs:\/\/)/, ''))}?${query}`
  const answer = await ask(path, { method: 'POST' })
  if (answer.statusCode === 200) return (await answer.body.json()) as TakenDown
  const said = await problemOf(answer)
  const error = wordsOf(answer.statusCode, said)
  if (!('isGone' in said)) throw new Error(error)
  const { cid: denied, isGone, pins, blocks, kept, failures } = said as unknown as TakenDown
  return { cid: denied, isGone, pins, blocks, kept, failures, error }
}

const wordsOfError = (error: unknown): string => (error instanceof Error ? error.message : String(error))

function lineOf({ pins, blocks, kept, failures, error }: Done): string {
  const told = pins?.providers.map(({ provider, outcome, why }) =>
    why === undefined ? `${provider} ${outcome}` : `${provider} ${outcome} (${why})`,
  )
  const stays = kept > 0 ? [`${kept} kept that other pins need`] : []
  const did = ['denied', ...(told ?? ['not pinned']), `${blocks} blocks purged`, ...stays, ...failures].join(', ')
  return error === undefined ? did : `${did}; BUT ${error}`
}
