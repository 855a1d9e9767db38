// `cidgate pins` and `cidgate deny`, through the admin address: list, delete, verify and deliver
// pins; take content down at every named instance.
import { setTimeout as sleep } from 'node:timers/promises'
import { wordsOf } from '../../core/failure.ts'
import type { Brought, Page, Pin, Removal, TakenDown, Verification } from '../../upload/api-types.ts'
import { type Given, meant, UsageError } from '../command.ts'
import { type Connection, connected, problemOf, refusal, statusWords } from './connection.ts'

/** The result for one pin: success, the data for programs, and the line for people. */
type Done = { readonly isWell: boolean; readonly said: object; readonly line: string | undefined }
type Work = (connection: Connection, cid: string) => Promise<Done>

const filters = ['name', 'provider', 'state', 'since', 'until', 'min', 'max'] as const
const pageSize = 200
const concurrency = 4
const maxWaitMs = 60_000

export const pinsCommand = (given: Given): Promise<number> =>
  connected(given, 'admin', (gateway) => {
    const [what = 'ls', ...named] = given.positionals
    if (what === 'ls') return list(given, gateway, named)
    if (what === 'rm' && named.length === 0) throw new UsageError('pins rm needs a CID')
    const work = works[what]
    if (work) return each(given, gateway, { named, work })
    const known = ['ls', ...Object.keys(works)]
    throw new UsageError(`pins: unknown subcommand ${what} (ls, rm, verify or sync)${meant(what, known)}`)
  })

async function* pages({ values }: Given, connection: Connection): AsyncGenerator<Pin> {
  const query = new URLSearchParams({ limit: String(pageSize) })
  for (const name of filters) if (typeof values[name] === 'string') query.set(name, values[name])
  for (let next: string | undefined = ''; next !== undefined; ) {
    if (next !== '') query.set('after', next)
    const page: Page = await asked<Page>(connection, 'GET', `/pins?${query}`)
    yield* page.pins
    next = page.next
  }
}

async function list(given: Given, gateway: Connection, named: readonly string[]): Promise<number> {
  if (named.length === 0) for await (const pin of pages(given, gateway)) gateway.print(pin, lineOf(pin))
  for (const cid of named) {
    const pin = await asked<Pin>(gateway, 'GET', pathOf(cid))
    gateway.print(pin, lineOf(pin))
  }
  return 0
}

function lineOf({ cid, name, bytes, at, providers }: Pin): string {
  const states = Object.entries(providers).map(([name, { state }]) => `${name} ${state}`)
  return [cid, bytes, at.slice(0, 19), states.join(', '), ...(name === undefined ? [] : [JSON.stringify(name)])].join(
    '  ',
  )
}

/** Handles the named pins, or all that the options select, a few at a time. */
async function each(
  given: Given,
  gateway: Connection,
  { named, work }: { readonly named: readonly string[]; readonly work: Work },
): Promise<number> {
  const { io, values } = given
  const cids = cidsOf(named.length > 0 ? named : pages(given, gateway))
  let ended = 0
  let failed = 0
  const worker = async (): Promise<void> => {
    for await (const cid of { [Symbol.asyncIterator]: () => cids }) {
      const { isWell, said, line } = await work(gateway, cid).catch((error: unknown): Done => {
        const why = wordsOf(error)
        return { isWell: false, said: { cid, error: why }, line: `${cid}  ${why}` }
      })
      if (!isWell) failed++
      gateway.print(said, line)
      gateway.progress.say(`${++ended} done`)
    }
  }
  await Promise.all(Array.from({ length: concurrency }, worker))
  gateway.progress.end()
  if (!values['json']) io.stderr.write(`cidgate: ${ended} pins, ${failed} of them need attention\n`)
  return failed > 0 ? 1 : 0
}

async function* cidsOf(source: readonly string[] | AsyncIterable<Pin>): AsyncGenerator<string> {
  for await (const one of source) yield typeof one === 'string' ? one : one.cid
}

const works: Readonly<Record<string, Work>> = {
  async rm(connection, cid) {
    const removal = await asked<Removal>(connection, 'DELETE', pathOf(cid))
    const shown = removal.providers.map(({ provider, outcome, why }) => words(provider, outcome, why))
    return { isWell: removal.isGone, said: removal, line: `${cid}  ${shown.join(', ')}` }
  },
  async verify(connection, cid) {
    const found = await asked<Verification>(connection, 'POST', `${pathOf(cid)}/verify`)
    const shown = found.providers.map(({ provider, state, why }) => words(provider, state, why))
    return { isWell: found.isWell, said: found, line: found.isWell ? undefined : `${cid}  ${shown.join(', ')}` }
  },
  async sync(connection, cid) {
    const brought = await asked<Brought>(connection, 'POST', `${pathOf(cid)}/sync`)
    const line = brought.to.length === 0 ? undefined : `${cid}  to ${brought.to.join(', ')}`
    return { isWell: true, said: brought, line }
  },
}

const words = (provider: string, state: string, why: string | undefined): string =>
  `${provider} ${state}${why === undefined ? '' : ` (${why})`}`

const pathOf = (cid: string): string => `/pins/${encodeURIComponent(cid.replace(/^(\/ipfs\/|ipfs:\/\/)/, ''))}`

/** Retries while the gateway is overloaded. */
async function asked<Said>(connection: Connection, method: 'GET' | 'POST' | 'DELETE', path: string): Promise<Said> {
  for (let waitedMs = 0; ; ) {
    const answer = await connection.ask(path, { method })
    if (answer.statusCode < 300) return (await answer.body.json()) as Said
    const why = await refusal(answer)
    const ms = Number(answer.headers['retry-after']) * 1000
    if (answer.statusCode !== 503 || !(ms >= 0) || waitedMs > maxWaitMs) throw new Error(why)
    await sleep(ms)
    waitedMs += ms + 1
  }
}

/** A failure at one instance is reported, and the others still apply theirs. */
export async function denyCommand(given: Given): Promise<number> {
  const { values, io, positionals } = given
  const named = values['admin'] ?? io.environment['CIDGATE_ADMIN_URL']
  const places = typeof named === 'string' && named !== '' ? named.split(',').map((one) => one.trim()) : [undefined]
  let failed = 0
  for (const admin of places)
    await connected({ ...given, values: { ...values, admin } }, 'admin', async (gateway) => {
      const { at, print } = gateway
      for (const cid of positionals) {
        const done = await takenDown(given, gateway, cid).catch((error: unknown) => ({ error: wordsOf(error) }))
        const isDone = 'isGone' in done && done.isGone && done.error === undefined
        if (!isDone) failed++
        print({ at, cid, ...done }, `${at}  ${cid}  ${'isGone' in done ? deniedLine(done) : done.error}`)
      }
      return 0
    })
  return failed > 0 ? 1 : 0
}

/**
 * `error`: the takedown applies, but the gateway could not save the list: the reason, and the next
 * step.
 */
type Denied = TakenDown & { readonly error?: string }

async function takenDown({ values }: Given, { ask }: Connection, cid: string): Promise<Denied> {
  const query = new URLSearchParams(values['legal'] ? { status: '451' } : {})
  if (typeof values['reason'] === 'string') query.set('reason', values['reason'])
  const path = `/deny/${encodeURIComponent(cid.replace(/^(\/ipfs\/|ipfs:\/\/)/, ''))}?${query}`
  const answer = await ask(path, { method: 'POST' })
  if (answer.statusCode === 200) return (await answer.body.json()) as TakenDown
  const said = await problemOf(answer)
  const error = statusWords(answer.statusCode, said)
  if (!('isGone' in said)) throw new Error(error)
  const { cid: denied, isGone, pins, blocks, kept, failures } = said as unknown as TakenDown
  return { cid: denied, isGone, pins, blocks, kept, failures, error }
}

function deniedLine({ pins, blocks, kept, failures, error }: Denied): string {
  const shown = pins?.providers.map(({ provider, outcome, why }) => words(provider, outcome, why))
  const stays = kept > 0 ? [`${kept} kept that other pins need`] : []
  const did = ['denied', ...(shown ?? ['not pinned']), `${blocks} blocks purged`, ...stays, ...failures].join(', ')
  return error === undefined ? did : `${did}; BUT ${error}`
}
