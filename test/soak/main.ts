// `npm run soak -- --minutes N`: a gateway under mixed load, with a fault or a cure of an upstream or the store each second, a
// rotten file now and then and a reload each half minute. Clients compare every byte. It ends with 1 when a byte was wrong, an
// acknowledged upload was lost, the process ended, or its memory or handles grew. Linux alone: it reads /proc.
import { fork } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { mkdir, mkdtemp, open, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { createClients } from './clients.ts'
import { bytesBelow, startGateway } from './gateway-process.ts'
import type { Told, World } from './world.ts'

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '30' },
    clients: { type: 'string', default: '16' },
    pause: { type: 'string', default: '20' },
    /** With more than one, a worker is killed each minute. */
    workers: { type: 'string', default: '1' },
    'faults-every': { type: 'string', default: '1000' },
    /** Per cent of the reads. */
    'most-unanswered': { type: 'string', default: '0.1' },
    verbose: { type: 'boolean', default: false },
  },
})
const endsAt = Date.now() + Number(values.minutes) * 60_000

const folder = await mkdtemp(join(tmpdir(), 'cidgate-soak-'))
const [content, data] = [join(folder, 'content'), join(folder, 'data')]
await mkdir(content)
const world = fork(fileURLToPath(new URL('world.ts', import.meta.url)), [content, values['faults-every']])
const made = Promise.withResolvers<World>()
let faults = 0
world.on('message', (told: Told) => {
  if ('world' in told) return made.resolve(told.world)
  faults++
  if (values.verbose) console.log(`${new Date().toISOString()} ${told.fault}`)
})
let isWorldOver = false
world.once('exit', (code) => {
  isWorldOver = true
  made.reject(new Error(`the world ended with ${code}`))
})
const { upstreams, s3, files } = await made.promise

const config = {
  listen: '127.0.0.1:0',
  workers: Number(values.workers),
  admin: false,
  data,
  log: { level: 'error' },
  limits: { perClient: { perMinute: 10_000_000 } },
  retrieval: { upstreams },
  cache: {
    responses: { maxBytes: '4MiB' },
    tiers: [{ use: 'memory', maxBytes: '16MiB' }, { use: 'disk', maxBytes: '48MiB' }, s3],
  },
  pinning: { providers: [{ name: 'local', use: 'embedded' }] },
}
const gateway = await startGateway(folder, config, [], { isLaunched: true })
const clients = createClients({ url: () => gateway.url, folder: content, files })
const running = Array.from({ length: Number(values.clients) }, () => clients.run(Number(values.pause)))

/** A byte of one file of the disk tier becomes another. */
async function rot(): Promise<void> {
  const below = join(data, 'cache')
  const entries = await readdir(below, { recursive: true, withFileTypes: true }).catch(() => [])
  const inside = entries.filter((entry) => entry.isFile())
  const one = inside[randomInt(Math.max(1, inside.length))]
  if (!one) return
  const file = await open(join(one.parentPath, one.name), 'r+').catch(() => undefined)
  try {
    const { size = 0 } = (await file?.stat()) ?? {}
    if (size > 0) await file?.write(Buffer.from([randomInt(256)]), 0, 1, randomInt(size))
  } finally {
    await file?.close()
  }
}

type Reading = { readonly minute: number; readonly residentMiB: number; readonly handles: number }
const readings: Reading[] = []
const began = Date.now()
const median = (all: readonly number[]): number => [...all].sort((a, b) => a - b)[all.length >> 1] ?? 0
const during = (minute: number): Reading => {
  const own = readings.filter((one) => Math.floor(one.minute) === minute)
  return {
    minute,
    residentMiB: median(own.map((one) => one.residentMiB)),
    handles: median(own.map((one) => one.handles)),
  }
}

for (let second = 1; Date.now() < endsAt && gateway.ended === undefined && !isWorldOver; second++) {
  await sleep(1000)
  if (gateway.ended !== undefined) break
  readings.push({
    minute: (Date.now() - began) / 60_000,
    residentMiB: gateway.residentMiB(),
    handles: gateway.handles(),
  })
  if (second % 7 === 0) await rot()
  if (second % 30 === 0) gateway.reload()
  if (second % 60 === 45) {
    const [worker] = gateway.workers()
    if (worker !== undefined) process.kill(worker, 'SIGKILL')
  }
  if (second % 60 === 0) {
    const { residentMiB, handles } = during(second / 60 - 1)
    const disk = (await bytesBelow(data)) / 1024 / 1024
    console.log(
      `minute ${second / 60}: ${residentMiB.toFixed(0)} MiB resident, ${handles} handles, ${disk.toFixed(0)} MiB on disk`,
    )
  }
}
clients.stop()
await Promise.all(running)
const brokeOff = isWorldOver
world.kill()
const { outcomes, wrong, reads, unanswered, uploads } = clients.tally
const crash = gateway.ended
const lost = crash === undefined ? await clients.missing() : []
await gateway.stop()

const faulty = [
  ...(brokeOff ? ['the soak itself broke off: its upstreams and its store ended'] : []),
  ...wrong,
  ...lost.map((one) => `lost upload ${one}`),
  ...(crash === undefined ? [] : [`the gateway ended: ${crash}`]),
]
const unansweredPercent = (100 * unanswered.length) / Math.max(1, reads)
if (unansweredPercent > Number(values['most-unanswered']))
  faulty.push(`${unanswered.length} of ${reads} reads had no answer although one upstream was well`)
const last = Math.floor((Date.now() - began) / 60_000) - 1
if (last > 5) {
  const [early, late] = [during(4), during(last)]
  if (late.residentMiB > 1.1 * early.residentMiB)
    faulty.push(
      `memory: ${early.residentMiB.toFixed(0)} MiB in the fifth minute, ${late.residentMiB.toFixed(0)} MiB in the last`,
    )
  if (late.handles > 1.5 * early.handles + 50)
    faulty.push(`handles: ${early.handles} in the fifth minute, ${late.handles} in the last`)
}
for (const [kind, count] of [...outcomes].sort()) console.log(`${String(count).padStart(8)}  ${kind}`)
console.log(`${faults} faults and cures, ${uploads.length} uploads acknowledged`)
for (const one of unanswered.slice(0, 20)) console.log(`no answer: ${one}`)
for (const one of faulty.slice(0, 50)) console.log(one)
console.log(faulty.length === 0 ? 'no wrong byte, nothing lost, no crash' : `${faulty.length} faults of the gateway`)
await rm(folder, { recursive: true, force: true })
process.exit(faulty.length === 0 ? 0 : 1)
