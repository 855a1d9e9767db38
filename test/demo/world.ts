// For the demo: three upstreams, a pinning service, what they have, and a minute of trouble that comes again and again.
import { addDirectory, addFile, type BlockMap, noise } from '../support/fixtures.ts'
import { kuboApi, type StandIn, startStandIn, token } from '../support/providers.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

export type Act = { readonly atSecond: number; readonly say: string; run(): void }

export interface DemoWorld {
  readonly upstreams: readonly { readonly name: string; readonly url: string }[]
  readonly service: { readonly url: string; readonly token: string }
  /** Paths of files, the oldest first. */
  readonly paths: readonly string[]
  /** The CID of a website. */
  readonly site: string
  /** New files appear, and the oldest go: there is always something to race for. */
  publish(): Promise<void>
  /** What happens in each minute, in order. */
  readonly acts: readonly Act[]
  close(): Promise<void>
}

const page = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Proved</title>
<style>
body { font: 1.1rem/1.6 system-ui, sans-serif; max-width: 36rem; margin: 12vh auto; padding: 0 1rem; color: #1a2b3c }
h1 { line-height: 1.2; border-left: .4rem solid #0b7a75; padding-left: 1rem }
a { color: #0b7a75 }
</style>
<h1>Every byte of this page was proved</h1>
<p>It came from one of three upstreams. One of them sends false bytes now and then, and you do not see it.</p>
<p>Beside it lie <a href="exhibits/">a folder</a> and <a href="rules.json">a JSON file</a>.</p></html>
`

// 300 KB each tenth file: small enough that a gateway with little memory has to go further for the old ones.
const maxFiles = 600
const newPerSecond = 4

type Content = { readonly paths: string[]; readonly site: string; publish(count: number): Promise<void> }

async function makeContent(blocks: BlockMap): Promise<Content> {
  const paths: string[] = []
  const keys: string[][] = []
  let number = 0

  async function publish(count: number): Promise<void> {
    for (const end = number + count; number < end; number++) {
      const text = `${JSON.stringify({ title: `Evidence ${number}`, name: `Exhibit ${number}`, at: Date.now() })}\n`
      const own: BlockMap = new Map()
      const { cid } = await addFile(own, number % 10 === 9 ? noise(300_000, number) : Buffer.from(text))
      for (const [key, bytes] of own) blocks.set(key, bytes)
      paths.push(`/ipfs/${cid}`)
      keys.push([...own.keys()])
      if (paths.length <= maxFiles) continue
      paths.shift()
      for (const key of keys.shift() ?? []) blocks.delete(key)
    }
  }

  await publish(maxFiles)
  const files = {
    'index.html': Buffer.from(page),
    'rules.json': Buffer.from('{"jurors":3}\n'),
    'exhibits/first.txt': Buffer.from('A candlestick.\n'),
    'exhibits/second.txt': Buffer.from('A letter, unsigned.\n'),
  }
  return { paths, publish, site: (await addDirectory(blocks, files)).toString() }
}

export async function startWorld(): Promise<DemoWorld> {
  const blocks: BlockMap = new Map()
  const { paths, site, publish } = await makeContent(blocks)
  const quick = await startUpstream({ blocks, delayMs: 8 })
  const slow = await startUpstream({ blocks, delayMs: 150 })
  const liar = await startUpstream({ blocks, delayMs: 4 })
  const service = await startStandIn(kuboApi)
  const servers = [quick, slow, liar, service]
  return {
    upstreams: [
      { name: 'quick', url: quick.url },
      { name: 'slow', url: slow.url },
      { name: 'liar', url: liar.url },
    ],
    service: { url: service.url, token },
    ...{ paths, site },
    publish: () => publish(newPerSecond),
    acts: actsOf({ quick, liar, service }),
    async close() {
      for (const server of servers) await server.close()
    },
  }
}

type Cast = { readonly quick: ProgrammableUpstream; readonly liar: ProgrammableUpstream; readonly service: StandIn }

const actsOf = ({ quick, liar, service }: Cast): Act[] => [
  {
    atSecond: 0,
    say: 'all three upstreams are well, and so is the pinning service',
    run() {
      // They write down what they are asked, for tests.
      for (const server of [quick, liar]) server.seen.length = server.asked.length = 0
      service.calls.length = 0
    },
  },
  {
    atSecond: 8,
    say: '`liar` sends false bytes from now on',
    run() {
      liar.fault = { kind: 'wrongBytes', block: 0 }
    },
  },
  {
    atSecond: 18,
    say: '`quick` is silent: only `slow` can answer what is in no tier',
    run() {
      quick.fault = { kind: 'silent' }
    },
  },
  {
    atSecond: 30,
    say: '`quick` is back, and `liar` tells the truth again',
    run() {
      quick.fault = undefined
      liar.fault = undefined
    },
  },
  {
    atSecond: 36,
    say: 'the pinning service is down: uploads are kept here, and delivered later',
    run() {
      service.script = () => ({ status: 503, text: 'maintenance' })
    },
  },
  {
    atSecond: 50,
    say: 'the pinning service is back: it gets the pending uploads',
    run() {
      service.script = undefined
    },
  },
]
