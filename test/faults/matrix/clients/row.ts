// Rows of the fault matrix: what one client does to all others. The gateway is a process of its own with a heap of 256 MiB, and
// a second client asks for a hot file all the time. Linux alone: it reads /proc.
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { type GatewayProcess, startGateway } from '../../../soak/gateway-process.ts'
import { addFile, type BlockMap, text } from '../../../support/fixtures.ts'
import { fetchAll, percentile } from '../../../support/gateway.ts'
import { startUpstream } from '../../../support/upstream.ts'
import { inMs, type Row } from '../rows.ts'
import { type Attack, type Met, siteHost } from './attacks.ts'
import type { HotTold } from './hot-client.ts'

const maxResidentMiB = 600

/** Undefined: the process ended. */
export async function residentUntil(gateway: GatewayProcess, over: Promise<unknown>): Promise<number | undefined> {
  let most = 0
  let isOver = false
  const stop = () => {
    isOver = true
  }
  void over.then(stop, stop)
  while (!isOver && gateway.ended === undefined) {
    most = Math.max(most, gateway.residentMiB())
    await sleep(50)
  }
  return gateway.ended === undefined ? most : undefined
}

/** What Node says by itself, such as of listeners that were not accepted away. */
const warning = /^\(node:\d+\) .*$/m

export async function clientRow({ name, promised, hotMs, prepare, run, ...how }: Attack): Promise<Row> {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-faults-'))
  const blocks: BlockMap = new Map()
  const hotPath = `/ipfs/${(await addFile(blocks, text(JSON.stringify({ some: 'x'.repeat(1000) })))).cid}`
  const content = await prepare(blocks)
  const upstream = await startUpstream({ blocks })
  if (how.isByBlock) upstream.fault = { kind: 'noCar', status: 406 }
  const config = {
    listen: '127.0.0.1:0',
    admin: false,
    data: join(folder, 'data'),
    log: { level: 'error' },
    hosts: { [siteHost]: { subdomains: true } },
    limits: { perClient: { perMinute: 10_000_000 }, ...(how.inFlight && { maxConcurrentRequests: how.inFlight }) },
    responses: { types: how.responses ?? 'api' },
    retrieval: { upstreams: [{ name: 'well', url: upstream.url }] },
    cache: {
      tiers: [
        { use: 'memory', maxBytes: '16MiB' },
        { use: 'disk', maxBytes: '256MiB' },
      ],
    },
  }
  const gateway = await startGateway(folder, config, ['--max-old-space-size=256'], { isMute: true })
  try {
    const { url } = gateway
    const hotUrl = url + hotPath
    for (let count = 0; count < 20; count++) await fetchAll(hotUrl)
    const hot = new Worker(new URL('hot-client.ts', import.meta.url), { workerData: hotUrl })
    await once(hot, 'message')
    const running = run({ url, port: Number(new URL(url).port), hotPath, content }).catch(
      (error: unknown): Met => ({ broken: [`its client failed: ${error}`] }),
    )
    const resident = await residentUntil(gateway, running)
    const { note, broken: wrong = [] } = (await running) ?? {}
    hot.postMessage('over')
    const [{ times, refused }] = (await once(hot, 'message')) as [HotTold]
    const recoveredMs = await untilHot(hotUrl)
    const [p99, worst] = [percentile(times, 0.99), percentile(times, 1)]
    const [said] = warning.exec(gateway.errors()) ?? []
    const broken = [
      ...wrong,
      ...(said === undefined ? [] : [`it said: ${said}`]),
      ...(resident === undefined ? [`the process ended: ${gateway.ended}`] : []),
      ...(resident !== undefined && resident > maxResidentMiB ? [`${Math.round(resident)} MiB resident`] : []),
      ...(p99 > hotMs ? [`hot answers wait ${inMs(p99)}`] : []),
      ...(refused > 0 ? [`${refused} hot requests were refused`] : []),
    ]
    const measured = `${note ? `${note}; ` : ''}${times.length} hot answers: p99 ${inMs(p99)}, longest ${inMs(worst)}`
    return {
      fault: name,
      promised: `${promised ? `${promised}; ` : ''}p99 of hot answers below ${inMs(hotMs)}; at most ${maxResidentMiB} MiB resident; none refused`,
      cells: [
        { measured: broken.length > 0 ? `${broken.join(', ')}; ${measured}` : measured, broken },
        { measured: resident === undefined ? 'the process ended' : `${Math.round(resident)} MiB`, broken: [] },
        {
          measured: `hot again after ${inMs(recoveredMs)}`,
          broken: recoveredMs > 5000 ? ['not as good as new in time'] : [],
        },
      ],
    }
  } finally {
    await gateway.stop()
    await upstream.close()
    await rm(folder, { recursive: true, force: true })
  }
}

async function untilHot(url: string): Promise<number> {
  const began = performance.now()
  while (performance.now() - began < 30_000) {
    const asked = performance.now()
    const got = await fetchAll(url).catch(() => undefined)
    if (got?.status === 200 && performance.now() - asked < 100) return performance.now() - began
    await sleep(20)
  }
  return Number.POSITIVE_INFINITY
}
