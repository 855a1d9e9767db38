// Rows of the fault matrix: what a provider does with uploads, alone, with the embedded one, and after it was recovered.
import { setTimeout as sleep } from 'node:timers/promises'
import { multipart, post } from '../../support/adding.ts'
import { noise } from '../../support/fixtures.ts'
import { startGateway } from '../../support/gateway.ts'
import { type Answer, kuboApi, startStandIn, token } from '../../support/providers.ts'
import { certificate, type DoorKind, name, port } from './doors.ts'
import { type Cell, type Form, inMs, type Row } from './rows.ts'

export type ProviderFault = {
  readonly name: string
  /** What it answers instead. */
  readonly answer?: Answer
  readonly slowMs?: number
  /** The connection is torn down behind so many bytes of the upload. */
  readonly cutAfter?: number
  readonly otherCid?: string
  /** What stands before it, and goes. */
  readonly door?: DoorKind
  readonly alone: 'accepted' | 'refused'
  readonly isQuick?: true
}

const refused = { alone: 'refused' } as const
const quick = { alone: 'refused', isQuick: true } as const
const failed = (status: number): Answer => ({ status, json: { Message: 'it is ill', Code: 0, Type: 'error' } })

export const providerFaults: readonly ProviderFault[] = [
  { name: 'tears the connection down', answer: 'cut', ...refused },
  { name: 'stays silent', answer: 'silent', ...refused },
  { name: 'answers after half a second', slowMs: 500, alone: 'accepted' },
  { name: 'tears the connection down in the middle of the upload', cutAfter: 20_000, ...refused },
  {
    name: '200 with an error inside',
    answer: { chunked: ['{"Message":"no space left","Code":0,"Type":"error"}\n'] },
    ...quick,
  },
  { name: '200 and an error behind it', answer: { chunked: ['{}\n'], trailer: 'no space left' }, ...quick },
  { name: '200 with HTML', answer: { text: '<html>hello</html>' }, ...quick },
  { name: '200 with nothing', answer: { text: '' }, ...quick },
  { name: 'answers another CID', otherCid: 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', ...quick },
  { name: '401', answer: failed(401), ...quick },
  { name: '403', answer: failed(403), ...quick },
  { name: '429', answer: failed(429), ...refused },
  { name: '500', answer: failed(500), ...refused },
  { name: '503', answer: failed(503), ...refused },
  { name: 'refuses connections', door: port, ...refused },
  { name: 'its name is gone (DNS)', door: name, ...refused },
  { name: 'its certificate has expired', door: certificate, ...refused },
]

const fileBytes = 100_000

export async function providerRow(fault: ProviderFault, form: Form): Promise<Row> {
  let isIll = true
  let made = 0
  const kubo = await startStandIn(async (call, self) => {
    if (isIll && fault.slowMs !== undefined) await sleep(fault.slowMs)
    return kuboApi(call, self)
  })
  const door = await fault.door?.(kubo.url)
  const entry = { name: 'kubo', use: 'kubo', url: door?.url ?? kubo.url, auth: { bearer: token }, gateway: false }
  const start = (...providers: object[]) =>
    startGateway({ config: { pinning: { timeout: `${form.deadlineMs}ms`, probeEvery: '0s', providers } } })
  const single = await start(entry)
  const both = await start({ name: 'local', use: 'embedded' }, entry)
  try {
    kubo.script = () => (isIll ? fault.answer : undefined)
    kubo.cutAfter = ({ path }) => (isIll && path.endsWith('/dag/import') ? fault.cutAfter : undefined)
    kubo.otherCid = fault.otherCid
    if (door) await throughDoor()
    const cells = [await aloneCell(), await besideCell(), await afterCell()]
    const words = fault.alone === 'accepted' ? '200' : `502, 503 or 504 within ${inMs(form.deadlineMs)}`
    return {
      fault: fault.name,
      promised: `${words}; 200 beside; 200 again within ${inMs(form.recoveredWithinMs)}`,
      cells,
    }
  } finally {
    isIll = false
    for (const running of [single, both, ...(door ? [door] : []), kubo]) await running.close()
  }

  async function send(base: string): Promise<{ readonly status: number; readonly ms: number }> {
    const began = performance.now()
    const body = Buffer.from(noise(fileBytes, ++made))
    const { status } = await post(`${base}/add`, multipart([{ fileName: 'a', body }]))
    return { status, ms: performance.now() - began }
  }

  /** It is the door that is missed, and nothing that never worked. */
  async function throughDoor(): Promise<void> {
    const { status } = await send(single.url)
    if (status !== 200) throw new Error(`${fault.name}: before it, an upload is ${status}`)
    await door?.break()
  }

  async function aloneCell(): Promise<Cell> {
    const { status, ms } = await send(single.url)
    const isRight = fault.alone === 'accepted' ? status === 200 : [502, 503, 504].includes(status)
    const isLate = Number.isFinite(form.maxMs) && ms > form.deadlineMs + form.maxMs
    const broken = [...(isRight ? [] : [`alone: ${status}`]), ...(isLate ? [`alone: after ${inMs(ms)}`] : [])]
    return { measured: `${status}, ${inMs(ms)}`, broken }
  }

  async function besideCell(): Promise<Cell> {
    let worst = 0
    const broken: string[] = []
    for (let count = 0; count < form.files; count++) {
      const { status, ms } = await send(both.url)
      worst = Math.max(worst, ms)
      if (status !== 200) broken.push(`with a healthy one: ${status}`)
    }
    const taken = form.files - broken.length
    if (worst > form.maxMs) broken.push(`with a healthy one: ${inMs(worst)}`)
    return { measured: `${taken} of ${form.files} accepted, at most ${inMs(worst)}`, broken }
  }

  async function afterCell(): Promise<Cell> {
    isIll = false
    kubo.otherCid = undefined
    await door?.mend()
    const began = performance.now()
    while (performance.now() - began < form.recoveredWithinMs) {
      if ((await send(single.url)).status === 200)
        return { measured: `accepted after ${inMs(performance.now() - began)}`, broken: [] }
      await sleep(50)
    }
    return { measured: 'not', broken: ['not as good as new in time'] }
  }
}
