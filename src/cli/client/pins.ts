// `cidgate pins`: lists, deletes and verifies pins, and sends them to providers that lack them,
// through the admin address.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Brought, Page, Pin, Removal, Verification } from '../../upload/api-types.ts'
import type { Given } from '../command.ts'
import { meant, UsageError } from '../usage.ts'
import { type Connection, connect, problemOf, wordsOf } from './connection.ts'
import { createProgress } from './progress.ts'

/** The result for one pin: success, the data for programs, and the line for people. */
type Done = { readonly isWell: boolean; readonly said: object; readonly line: string | undefined }
type Work = (connection: Connection, cid: string) => Promise<Done>

const filters = ['name', 'provider', 'state', 'since', 'until', 'min', 'max'] as const
const pageOf = 200
const atOnce = 4
const maxWaitMs = 60_000

export async function pinsCommand(given: Given): Promise<number> {
  const [what = 'ls', ...named] = given.positionals
  const connection = connect(given, 'admin')
  try {
    if (what === 'ls') return await list(given, connection, named)
    if (what === 'rm' && named.length === 0) throw new UsageError('pins rm takes a CID')
    const work = works[what]
    if (!work)
      throw new UsageError(
        `pins takes ls, rm, verify or sync, not ${what}${meant(what, ['ls', ...Object.keys(works)])}`,
      )
    return await each(given, connection, { named, work })
  } finally {
    await connection.close()
  }
}

async function* pages({ values }: Given, connection: Connection): AsyncGenerator<Pin> {
  const query = new URLSearchParams({ limit: String(pageOf) })
  for (const name of filters) if (typeof values[name] === 'string') query.set(name, values[name])
  for (let next: string | undefined = ''; next !== undefined; ) {
    if (next !== '') query.set('after', next)
    const page: Page = await asked<Page>(connection, 'GET', `/pins?${query}`)
    yield* page.pins
    next = page.next
  }
}

async function list(given: Given, connection: Connection, named: readonly string[]): Promise<number> {
  const { io, values } = given
  const source = named.length > 0 ? one(connection, named) : pages(given, connection)
  for await (const pin of source) io.stdout.write(`${values['json'] ? JSON.stringify(pin) : lineOf(pin)}\n`)
  return 0
}

async function* one(connection: Connection, named: readonly string[]): AsyncGenerator<Pin> {
  for (const cid of named) yield await asked<Pin>(connection, 'GET', pathOf(cid))
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
  connection: Connection,
  { named, work }: { readonly named: readonly string[]; readonly work: Work },
): Promise<number> {
  const { io, values } = given
  const progress = createProgress(io.stderr)
  const cids = named.length > 0 ? fromList(named) : fromPages(pages(given, connection))
  let ended = 0
  let failed = 0
  const worker = async (): Promise<void> => {
    for (let next = await cids.next(); !next.done; next = await cids.next()) {
      const { isWell, said, line } = await work(connection, next.value).catch((error: unknown): Done => {
        const why = error instanceof Error ? error.message : String(error)
        return { isWell: false, said: { cid: next.value, error: why }, line: `${next.value}  ${why}` }
      })
      if (!isWell) failed++
      progress.end()
      if (values['json']) io.stdout.write(`${JSON.stringify(said)}\n`)
      else if (line !== undefined) io.stdout.write(`${line}\n`)
      progress.say(`${++ended} done`)
    }
  }
  try {
    await Promise.all(Array.from({ length: atOnce }, worker))
  } finally {
    progress.end()
  }
  if (!values['json']) io.stderr.write(`cidgate: ${ended} pins, ${failed} of them need a look\n`)
  return failed > 0 ? 1 : 0
}

async function* fromList(named: readonly string[]): AsyncGenerator<string> {
  yield* named
}

async function* fromPages(pins: AsyncIterable<Pin>): AsyncGenerator<string> {
  for await (const { cid } of pins) yield cid
}

const works: Readonly<Record<string, Work>> = {
  async rm(connection, cid) {
    const removal = await asked<Removal>(connection, 'DELETE', pathOf(cid))
    const told = removal.providers.map(({ provider, outcome, why }) => words(provider, outcome, why))
    return { isWell: removal.isGone, said: removal, line: `${cid}  ${told.join(', ')}` }
  },
  async verify(connection, cid) {
    const found = await asked<Verification>(connection, 'POST', `${pathOf(cid)}/verify`)
    const told = found.providers.map(({ provider, state, why }) => words(provider, state, why))
    return { isWell: found.isWell, said: found, line: found.isWell ? undefined : `${cid}  ${told.join(', ')}` }
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
    const problem = await problemOf(answer)
    const ms = Number(answer.headers['retry-after']) * 1000
    if (answer.statusCode !== 503 || !(ms >= 0) || waitedMs > maxWaitMs)
      throw new Error(wordsOf(answer.statusCode, problem))
    await sleep(ms)
    waitedMs += ms + 1
  }
}
