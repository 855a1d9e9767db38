// What the cells of a row for an upstream are: what clients get where it is the only one, beside a healthy one, and after it was
// recovered. In each, nobody but the upstreams that the operator named may be connected to.
import { setTimeout as sleep } from 'node:timers/promises'
import type { FileFixture } from '../../../support/fixtures.ts'
import type { TestGateway } from '../../../support/gateway.ts'
import type { Fault, ProgrammableUpstream } from '../../../support/upstream.ts'
import { type Got, read, untilWhole } from '../reading.ts'
import { type Cell, type Form, inMs } from '../rows.ts'
import type { Strangers } from './connects.ts'

/** For the first lie, and for an hour of Retry-After, which is watched for a minute (docs/upstreams.md). */
export const keptAwayMs = { again: 0, soon: 0, quarantined: 5000, 'left alone': 60_000 } as const

export type UpstreamFault = {
  readonly name: string
  /** `elsewhere`: the address of another host, which has the same. */
  readonly fault: Fault | ((elsewhere: string) => NonNullable<ProgrammableUpstream['fault']>)
  /** What a client gets where this upstream is the only one. */
  readonly alone: 'complete' | 'no file'
  /** Whether it is asked again as soon as it is well, or kept away from for what it did: for lies while another one is well, and as asked for. */
  readonly after: 'again' | 'soon' | 'quarantined' | 'left alone'
  /** So many clients read at once, each a file of its own. */
  readonly clients?: number
  /** It comes and goes, and is read from for so long. */
  readonly forMs?: number
  /** How many questions one file may cost while it is ill. */
  readonly maxAsked?: number
  /** Its outcome does not hang on a clock: the short form has it. */
  readonly isQuick?: true
}

const readsToFindOut = 20

export type Parts = {
  readonly fault: UpstreamFault
  readonly form: Form
  readonly ill: ProgrammableUpstream
  readonly well: ProgrammableUpstream
  readonly elsewhere: ProgrammableUpstream
  /** It has the ill upstream alone. */
  readonly single: TestGateway
  readonly both: TestGateway
  readonly strangers: Strangers
  readonly fresh: () => Promise<FileFixture>
}

/** By this header of a question it is known which gateway asked. */
export const asker = 'x-asked-by'
export const askedBy = ({ ill }: Parts, who: 'alone' | 'beside'): number =>
  ill.asked.filter(({ headers }) => headers[asker] === who).length

/** A round of the clients, and more for as long as the fault comes and goes. */
async function reads({ fault, fresh }: Parts, base: string): Promise<readonly Got[]> {
  const { clients = 1, forMs = 0 } = fault
  const got: Got[] = []
  const until = performance.now() + forMs
  do {
    const files: FileFixture[] = []
    for (let client = 0; client < clients; client++) files.push(await fresh())
    got.push(...(await Promise.all(files.map((file) => read(base, file)))))
    if (forMs > 0) await sleep(100)
  } while (performance.now() < until)
  return got
}

/** Who else was asked: nobody may be. */
function otherAsked({ strangers, elsewhere }: Parts): readonly string[] {
  const asked = elsewhere.seen.splice(0).length
  const connects = strangers.take().map((host) => `it connected to ${host}`)
  return asked === 0 ? connects : [...connects, `another host was asked ${asked} times`]
}

const timesOf = (got: readonly Got[]): string => inMs(Math.max(...got.map(({ ms }) => ms)))
const completeOf = (got: readonly Got[]): number => got.filter(({ outcome }) => outcome === 'complete').length

export async function aloneCell(parts: Parts): Promise<Cell> {
  const { fault, form, single } = parts
  const got = await reads(parts, single.url)
  const broken: string[] = []
  for (const { outcome, ms } of got) {
    const isRight = fault.alone === 'complete' ? outcome === 'complete' : outcome === 404 || outcome === 'cut'
    if (!isRight) broken.push(`alone: ${outcome}`)
    // What began is given more time than the deadline for its first byte; a stall is cut when the next block is overdue.
    const maxMs = (outcome === 'cut' ? 6 : 1) * form.deadlineMs + form.maxMs
    if (ms > maxMs) broken.push(`alone: after ${inMs(ms)}`)
  }
  const asked = askedBy(parts, 'alone')
  if (asked > (fault.maxAsked ?? Number.POSITIVE_INFINITY)) broken.push(`alone: asked ${asked} times`)
  const [first] = got
  const many = `${completeOf(got)} of ${got.length} complete, at most ${timesOf(got)}`
  const measured = got.length === 1 && first ? `${first.outcome}, ${inMs(first.ms)}` : many
  return { measured, broken: [...broken, ...otherAsked(parts)] }
}

/** The gateway found out what it did then or later; by then, it had been asked so often. */
export type Out = { readonly since: number; readonly asked: number }

export async function besideCell(parts: Parts): Promise<{ readonly cell: Cell; readonly out: Out | undefined }> {
  const { fault, form, both } = parts
  const got: Got[] = []
  let out: Out | undefined
  const isKeptAway = keptAwayMs[fault.after] > 0
  const isKnown = () => !isKeptAway || out !== undefined
  for (let round = 0; round < form.files || !(isKnown() || round >= readsToFindOut); round++) {
    const began = performance.now()
    got.push(...(await reads(parts, both.url)))
    if (isKeptAway && isOut(both)) out ??= { since: began, asked: askedBy(parts, 'beside') }
    if (fault.clients || fault.forMs) break
  }
  const broken = got.flatMap(({ outcome, ms }) => [
    ...(outcome === 'complete' ? [] : [`with a healthy one: ${outcome}`]),
    ...(ms > form.maxMs ? [`with a healthy one: ${inMs(ms)}`] : []),
  ])
  if (!isKnown()) broken.push('nobody found out what it did')
  if (fault.after === 'again' && isOut(both)) broken.push('it is kept away from')
  const measured = `${completeOf(got)} of ${got.length} complete, at most ${timesOf(got)}`
  return { cell: { measured, broken: [...broken, ...otherAsked(parts)] }, out }
}

const isOut = ({ log }: TestGateway): boolean =>
  log.some(({ event, facts }) => /\.(quarantined|rate-limited)$/.test(event) && facts['upstream'] === 'ill')

export async function againCell({ single, fresh, form }: Parts): Promise<Cell> {
  const ms = await untilWhole(single.url, fresh, form.recoveredWithinMs)
  if (!Number.isFinite(ms)) return { measured: 'not', broken: ['not as good as new in time'] }
  return { measured: `complete after ${inMs(ms)}`, broken: [] }
}
