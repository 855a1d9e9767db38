// Rows of the fault matrix: what one upstream does, alone, before a healthy one, and after it was mended.
import { addFile, type BlockMap, type FileFixture, noise } from '../../support/fixtures.ts'
import { startGateway } from '../../support/gateway.ts'
import { type Fault, startUpstream } from '../../support/upstream.ts'
import { read, untilWhole } from './reading.ts'
import { type Cell, type Form, inMs, type Row } from './rows.ts'

export type UpstreamFault = {
  readonly name: string
  readonly fault: Fault
  /** What a client gets where this upstream is the only one. */
  readonly alone: 'whole' | 'no file'
  /** Whether it is asked again as soon as it is well, or kept away from for what it did. */
  readonly after: 'again' | 'kept away'
  /** Its outcome does not hang on a clock: the short form has it. */
  readonly isQuick?: true
}

const quick = { isQuick: true } as const
const failing = { alone: 'no file', after: 'again' } as const
/** What is missing is asked for again, or block by block. */
const whole = { alone: 'whole', after: 'again' } as const
const lying = { alone: 'no file', after: 'kept away' } as const

// The file is a root and three leaves of 256 KiB.
export const upstreamFaults: readonly UpstreamFault[] = [
  { name: 'refuses connections', fault: { kind: 'refuse' }, ...failing },
  { name: 'accepts and says nothing', fault: { kind: 'silent' }, ...failing },
  { name: 'first byte after 1 s', fault: { kind: 'slowFirstByte', ms: 1000 }, ...whole },
  { name: 'drips from the start', fault: { kind: 'drip', bytes: 1, everyMs: 500 }, ...failing },
  { name: 'breaks off after the root', fault: { kind: 'cut', after: 300 }, ...failing },
  { name: 'breaks off in the middle', fault: { kind: 'cut', after: 300_000 }, ...whole },
  { name: 'stalls after the root', fault: { kind: 'stall', after: 300 }, ...failing },
  { name: 'stalls in the middle', fault: { kind: 'stall', after: 300_000 }, ...failing },
  { name: 'stalls before the last block', fault: { kind: 'stall', after: 590_000 }, ...failing },
  { name: 'ends early and cleanly', fault: { kind: 'endsEarly', after: 300_000 }, ...whole },
  { name: 'says a length that is wrong', fault: { kind: 'wrongLength' }, ...whole },
  { name: 'false byte in the first block', fault: { kind: 'wrongBytes', block: 0 }, ...lying, ...quick },
  { name: 'false byte in the middle', fault: { kind: 'wrongBytes', block: 1 }, ...lying, ...quick },
  { name: 'false byte in the last block', fault: { kind: 'wrongBytes', block: 3 }, ...lying, ...quick },
  { name: 'another block, right by its own CID', fault: { kind: 'foreignBlock' }, ...whole, ...quick },
  { name: 'leaves out a block', fault: { kind: 'skipBlock', block: 2 }, ...whole },
  { name: 'HTML with 200', fault: { kind: 'html' }, ...failing, ...quick },
  { name: 'redirects to loopback', fault: { kind: 'redirect', to: 'http://127.0.0.1:9/' }, ...failing, ...quick },
  { name: '401', fault: { kind: 'status', status: 401 }, ...failing, ...quick },
  { name: '404', fault: { kind: 'notFound' }, ...failing, ...quick },
  { name: '451', fault: { kind: 'status', status: 451 }, ...failing, ...quick },
  { name: '429 without Retry-After', fault: { kind: 'throttle' }, ...lying, ...quick },
  { name: '429, Retry-After of 10^12 s', fault: { kind: 'throttle', retryAfter: '1000000000000' }, ...lying, ...quick },
  { name: '500', fault: { kind: 'status', status: 500 }, ...failing },
  { name: '503', fault: { kind: 'status', status: 503 }, ...failing },
  { name: 'a body without end', fault: { kind: 'endless' }, ...failing },
  { name: 'a compressed bomb', fault: { kind: 'gzipBomb' }, ...failing },
  { name: 'a CAR without its root', fault: { kind: 'emptyCar' }, ...whole },
]

const fileBytes = 600_000

export async function upstreamRow({ name, fault, alone, after }: UpstreamFault, form: Form): Promise<Row> {
  const blocks: BlockMap = new Map()
  let made = 0
  const fresh = (): Promise<FileFixture> => addFile(blocks, noise(fileBytes, ++made), 'v0')
  const ill = await startUpstream({ blocks })
  const well = await startUpstream({ blocks, delayMs: 20 })
  const configWith = (deadlineMs: number) => ({
    retrieval: { deadline: `${deadlineMs}ms` },
    cache: { hot: { maxBytes: 0 }, tiers: [{ use: 'memory', maxBytes: '64MiB' }] },
  })
  const one = { name: 'ill', url: ill.url }
  const single = await startGateway({ upstreams: [one], config: configWith(form.deadlineMs) })
  const both = await startGateway({
    upstreams: [one, { name: 'well', url: well.url }],
    config: configWith(form.deadlineMs),
  })
  try {
    ill.fault = fault
    const cells = [await aloneCell(), await besideCell(), await afterCell()]
    const words = alone === 'whole' ? 'whole' : `404 or cut within ${inMs(form.deadlineMs)}`
    const later =
      after === 'again' ? `asked again within ${inMs(form.mendedWithinMs)}` : 'kept away from for what it did'
    return { fault: name, promised: `${words}; ${later}`, cells }
  } finally {
    for (const running of [single, both, ill, well]) await running.close()
  }

  async function aloneCell(): Promise<Cell> {
    const { outcome, ms } = await read(single.url, await fresh())
    const isRight = alone === 'whole' ? outcome === 'whole' : outcome === 404 || outcome === 'cut'
    // What began is given more time than the deadline for its first byte; a stall is cut when the next block is overdue.
    const isLate =
      form.mostMs !== Number.POSITIVE_INFINITY && ms > (outcome === 'cut' ? 6 : 1) * form.deadlineMs + form.mostMs
    const broken = [...(isRight ? [] : [`alone: ${outcome}`]), ...(isLate ? [`alone: after ${inMs(ms)}`] : [])]
    return { measured: `${outcome}, ${inMs(ms)}`, broken }
  }

  async function besideCell(): Promise<Cell> {
    let worst = 0
    const broken: string[] = []
    for (let count = 0; count < form.files; count++) {
      const { outcome, ms } = await read(both.url, await fresh())
      worst = Math.max(worst, ms)
      if (outcome !== 'whole') broken.push(`beside a healthy one: ${outcome}`)
    }
    const whole = form.files - broken.length
    if (worst > form.mostMs) broken.push(`beside a healthy one: ${inMs(worst)}`)
    return { measured: `${whole} of ${form.files} whole, at most ${inMs(worst)}`, broken }
  }

  async function afterCell(): Promise<Cell> {
    ill.fault = undefined
    const base = after === 'again' ? single.url : both.url
    const ms = await untilWhole(base, fresh, form.mendedWithinMs)
    const broken = Number.isFinite(ms) ? [] : ['not as good as new in time']
    const by = after === 'again' ? '' : ' by the healthy one'
    return { measured: Number.isFinite(ms) ? `whole${by} after ${inMs(ms)}` : 'not', broken }
  }
}
