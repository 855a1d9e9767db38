// `npm run demo`: a gateway beside three upstreams and a pinning service that are made up, under load, while one lies, one
// falls silent and the service drops out. It needs nothing but this machine, and leaves nothing behind.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { request } from 'undici'
import { startLoad, type Tally } from './load.ts'
import { type DemoWorld, startWorld } from './world.ts'

const { values } = parseArgs({
  options: {
    listen: { type: 'string', default: '127.0.0.1:8080' },
    admin: { type: 'string', default: '127.0.0.1:9090' },
    /** Ends by itself after so long. By default it runs until Ctrl-C. */
    seconds: { type: 'string' },
  },
})

const lineSeconds = 2
const roundSeconds = 60
const endsAfter = values.seconds === undefined ? Number.POSITIVE_INFINITY : Number(values.seconds)
const cli = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))

const stopping = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => stopping.abort())

const folder = await mkdtemp(join(tmpdir(), 'cidgate-demo-'))
const world = await startWorld()
type Gateway = { readonly url: string; readonly admin: string; stop(): Promise<void>; readonly ended: Promise<unknown> }

async function startGateway({ upstreams, service }: DemoWorld): Promise<Gateway | undefined> {
  const config = {
    listen: values.listen,
    admin: values.admin,
    data: join(folder, 'data'),
    log: { level: 'error' },
    // Small, so that some reads always have to go further.
    cache: {
      responses: { maxBytes: '2MiB' },
      tiers: [
        { use: 'memory', maxBytes: '4MiB' },
        { use: 'disk', maxBytes: '16MiB' },
      ],
    },
    retrieval: { upstreams },
    responses: { types: 'web' },
    hosts: { localhost: { subdomains: true } },
    pinning: {
      acceptWhileUnavailable: true,
      providers: [
        { name: 'local', use: 'embedded' },
        { name: 'service', use: 'kubo', url: service.url, auth: { bearer: service.token } },
      ],
    },
    limits: { perClient: { perMinute: 1_000_000 } },
  }
  const file = join(folder, 'cidgate.json')
  await writeFile(file, JSON.stringify(config))
  const child = spawn(process.execPath, [cli, 'serve', '--config', file], { stdio: ['ignore', 'pipe', 'pipe'] })
  const ended = once(child, 'exit')
  let hasStarted = false
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    if (hasStarted) process.stderr.write(text)
    else said += text
  })
  const [line] = (await Promise.race([once(createInterface({ input: child.stdout }), 'line'), ended])) as [string]
  const [url, admin] = String(line).match(/http:\/\/[^\s/)]+/g) ?? []
  if (url === undefined || admin === undefined) {
    console.error(`${said.trim()}; name other ports: npm run demo -- --listen 127.0.0.1:9000 --admin 127.0.0.1:9001`)
    return undefined
  }
  hasStarted = true
  process.stderr.write(said)
  return {
    url,
    admin,
    ended,
    async stop() {
      child.kill('SIGTERM')
      await ended
    },
  }
}

async function show(gateway: Gateway): Promise<void> {
  console.log(`
  gateway     ${gateway.url}
  dashboard   ${gateway.admin}
  a website   http://${world.site}.ipfs.localhost:${new URL(gateway.url).port}/
  a file      curl ${gateway.url}${world.paths[0]}
  upload one  curl -F data=@README.md ${gateway.url}/add

  Ctrl-C ends it.
`)
  void gateway.ended.then(() => stopping.abort())
  const load = startLoad(gateway.url, world.paths)
  try {
    await play(gateway, load)
  } finally {
    await load.stop()
    await gateway.stop()
  }
}

async function play(gateway: Gateway, load: ReturnType<typeof startLoad>): Promise<void> {
  for (let second = 0; second < endsAfter && !stopping.signal.aborted; second++) {
    for (const { atSecond, say, run } of world.acts) {
      if (atSecond !== second % roundSeconds) continue
      run()
      console.log(`${clockOf(second)} ── ${say}`)
    }
    await world.publish()
    if (second > 0 && second % lineSeconds === 0)
      console.log(`${clockOf(second)}    ${lineOf(load.take(), await owedBy(gateway))}`)
    await sleep(1000, undefined, { signal: stopping.signal }).catch(() => {})
  }
}

const clockOf = (second: number): string =>
  `${Math.floor(second / 60)}:${String(second % 60).padStart(2, '0')}`.padStart(6)

/** Uploads that a provider does not hold yet. */
async function owedBy({ admin }: Gateway): Promise<number | undefined> {
  try {
    const { body } = await request(`${admin}/uploads`, { headersTimeout: 5000, bodyTimeout: 5000 })
    return ((await body.json()) as { open: number }).open
  } catch {
    return undefined
  }
}

function lineOf({ statuses, sources, millis, uploads }: Tally, pending: number | undefined): string {
  const sorted = millis.sort((one, other) => one - other)
  const at = (share: number): string => `${Math.round(sorted[Math.floor(sorted.length * share)] ?? 0)} ms`
  const all = [...sources.values()].reduce((sum, count) => sum + count, 0)
  const shares = [...sources].sort((one, other) => other[1] - one[1])
  return [
    [...statuses].map(([status, count]) => `${status || 'cut'} × ${count}`).join(', '),
    shares.map(([source, count]) => `${source} ${Math.round((100 * count) / all)} %`).join(', '),
    `half in ${at(0.5)}, 95 % in ${at(0.95)}`,
    `${uploads} uploaded, ${pending ?? '?'} pending`,
  ].join(' · ')
}

try {
  const gateway = await startGateway(world)
  if (gateway) await show(gateway)
  else process.exitCode = 2
} finally {
  await world.close()
  await rm(folder, { recursive: true, force: true })
}
