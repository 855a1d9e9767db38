// Rows of the fault matrix: what one upstream does, alone, before a healthy one, and after it was recovered.
import { addFile, type BlockMap, type FileFixture, noise } from '../../support/fixtures.ts'
import { startGateway } from '../../support/gateway.ts'
import { type Fault, startUpstream } from '../../support/upstream.ts'
import { type Form, inMs, type Row } from './rows.ts'
import { againCell, aloneCell, asker, besideCell, keptAwayMs, type UpstreamFault } from './upstream/cells.ts'
import { watchConnects } from './upstream/connects.ts'
import { awayCell } from './upstream/left-alone.ts'

const quick = { isQuick: true } as const
const failing = { alone: 'no file', after: 'again' } as const
/** What is missing is asked for again, or block by block. */
const complete = { alone: 'complete', after: 'again' } as const
const lying = { alone: 'no file', after: 'quarantined' } as const
const throttling = { alone: 'no file', after: 'left alone' } as const
const second = 1000

/** Ill for a second, well for the next. */
function flapping(): () => Fault | undefined {
  const began = performance.now()
  return () => (Math.floor((performance.now() - began) / second) % 2 === 0 ? { kind: 'refuse' } : undefined)
}

// The file is a root and three leaves of 256 KiB.
export const upstreamFaults: readonly UpstreamFault[] = [
  { name: 'refuses connections', fault: { kind: 'refuse' }, ...failing },
  { name: 'accepts and stays silent', fault: { kind: 'silent' }, ...failing },
  { name: 'first byte after 1 s', fault: { kind: 'slowFirstByte', ms: 1000 }, ...complete },
  { name: 'drips from the start', fault: { kind: 'drip', bytes: 1, everyMs: 500 }, ...failing },
  {
    name: 'drips from the middle',
    fault: { kind: 'drip', bytes: 1, everyMs: 500, after: 300_000 },
    ...failing,
  },
  { name: 'breaks off after the root', fault: { kind: 'cut', after: 300 }, ...failing },
  { name: 'breaks off in the middle', fault: { kind: 'cut', after: 300_000 }, ...complete },
  { name: 'stalls after the root', fault: { kind: 'stall', after: 300 }, ...failing },
  { name: 'stalls in the middle', fault: { kind: 'stall', after: 300_000 }, ...failing },
  { name: 'stalls before the last block', fault: { kind: 'stall', after: 590_000 }, ...failing },
  { name: 'ends early and cleanly', fault: { kind: 'endsEarly', after: 300_000 }, ...complete },
  { name: 'sends a wrong Content-Length', fault: { kind: 'wrongLength' }, ...complete },
  { name: 'false byte in the first block', fault: { kind: 'wrongBytes', block: 0 }, ...lying, ...quick },
  { name: 'false byte in the middle', fault: { kind: 'wrongBytes', block: 1 }, ...lying, ...quick },
  { name: 'false byte in the last block', fault: { kind: 'wrongBytes', block: 3 }, ...lying, ...quick },
  { name: 'another block, right by its own CID', fault: { kind: 'foreignBlock' }, ...complete, ...quick },
  {
    name: '200,000 other blocks before its own',
    fault: { kind: 'foreignBlock', count: 200_000 },
    ...complete,
  },
  { name: 'the last block first', fault: { kind: 'backwards' }, ...complete, ...quick },
  { name: 'each block three times', fault: { kind: 'repeats', times: 3 }, ...complete, ...quick },
  { name: 'leaves out a block', fault: { kind: 'skipBlock', block: 2 }, ...complete },
  { name: 'HTML with 200', fault: { kind: 'html' }, ...failing, ...quick },
  { name: 'redirects to loopback', fault: { kind: 'redirect', to: 'http://127.0.0.1:9/' }, ...failing, ...quick },
  {
    name: 'redirects to a link-local address',
    fault: { kind: 'moved', to: 'http://169.254.169.254' },
    ...failing,
  },
  { name: 'redirects to another host', fault: (to) => ({ kind: 'moved', to }), ...failing, ...quick },
  { name: 'redirects on its own host', fault: { kind: 'moved', to: '/moved' }, ...complete, ...quick },
  { name: 'redirects in a circle', fault: { kind: 'redirect', to: '/again' }, ...failing, maxAsked: 12, ...quick },
  { name: '401', fault: { kind: 'status', status: 401 }, ...failing, ...quick },
  { name: '403', fault: { kind: 'status', status: 403 }, ...failing, ...quick },
  { name: '404', fault: { kind: 'notFound' }, ...failing, ...quick },
  { name: '410', fault: { kind: 'status', status: 410 }, ...failing },
  { name: '451', fault: { kind: 'status', status: 451 }, ...failing, ...quick },
  { name: '429 without Retry-After', fault: { kind: 'throttle' }, alone: 'no file', after: 'soon', ...quick },
  {
    name: '429, Retry-After of 10^12 s',
    fault: { kind: 'throttle', retryAfter: '1000000000000' },
    ...throttling,
    ...quick,
  },
  { name: '500', fault: { kind: 'status', status: 500 }, ...failing },
  { name: '503', fault: { kind: 'status', status: 503 }, ...failing },
  { name: 'a body without end', fault: { kind: 'endless' }, ...failing },
  { name: 'headers without end', fault: { kind: 'endlessHeaders' }, ...failing },
  { name: 'a compressed bomb', fault: { kind: 'gzipBomb' }, ...failing },
  { name: 'a CAR without its root', fault: { kind: 'emptyCar' }, ...complete },
  { name: 'unhealthy for a second, healthy for a second', fault: flapping, ...complete, forMs: 6 * second },
  { name: 'searches 30 s for what it lacks', fault: { kind: 'lacks', searchMs: 30 * second }, ...failing },
  {
    name: 'works at one question at a time, for 150 ms each',
    fault: { kind: 'queues', atOnce: 1, ms: 150 },
    ...complete,
    clients: 8,
  },
]

const fileBytes = 600_000

export async function upstreamRow(fault: UpstreamFault, form: Form): Promise<Row> {
  const blocks: BlockMap = new Map()
  let made = 0
  const fresh = (): Promise<FileFixture> => addFile(blocks, noise(fileBytes, ++made), 'v0')
  const ill = await startUpstream({ blocks })
  const well = await startUpstream({ blocks, delayMs: 20 })
  const elsewhere = await startUpstream({ blocks })
  const strangers = watchConnects([ill.url, well.url])
  const config = {
    retrieval: { timeout: `${form.deadlineMs}ms`, blockTimeout: `${form.deadlineMs}ms` },
    cache: { responses: { maxBytes: 0 }, tiers: [{ use: 'memory', maxBytes: '64MiB' }] },
  }
  const start = (by: string, ...others: readonly { readonly name: string; readonly url: string }[]) =>
    startGateway({ upstreams: [{ name: 'ill', url: ill.url, headers: { [asker]: by } }, ...others], config })
  const single = await start('alone')
  const both = await start('beside', { name: 'well', url: well.url })
  const parts = { fault, form, ill, well, elsewhere, single, both, strangers, fresh }
  try {
    ill.fault =
      typeof fault.fault === 'function' ? fault.fault(elsewhere.url.replace('127.0.0.1', 'localhost')) : fault.fault
    const alone = await aloneCell(parts)
    const beside = await besideCell(parts)
    ill.fault = undefined
    const after = beside.out ? await awayCell(parts, beside.out) : await againCell(parts)
    return { fault: fault.name, promised: promised(fault, form), cells: [alone, beside.cell, after] }
  } finally {
    strangers.stop()
    for (const running of [single, both, ill, well, elsewhere]) await running.close()
  }
}

function promised({ alone, after }: UpstreamFault, { deadlineMs, recoveredWithinMs }: Form): string {
  const words = alone === 'complete' ? 'complete' : `404 or cut within ${inMs(deadlineMs)}`
  const again = `asked again within ${inMs(recoveredWithinMs)}`
  if (after === 'again' || after === 'soon') return `${words}; ${again}`
  const away = inMs(keptAwayMs[after])
  if (after === 'left alone') return `${words}; not asked at all for ${away} or more`
  return `${words}; not asked for ${away} where another one is well; alone, ${again}`
}
