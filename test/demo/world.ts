// For the demo: three upstreams, a pinning service, what they have, and a minute of trouble that comes again and again.
import { addDirectory, addFile, type BlockMap, noise } from '../support/fixtures.ts'
import { kuboApi, type StandIn, startStandIn, token } from '../support/providers.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

export type Act = { readonly atSecond: number; readonly say: string; run(): void }

export interface DemoWorld {
  readonly upstreams: readonly { readonly name: string; readonly url: string }[]
  readonly service: { readonly url: string; readonly token: string }
  /** Paths of files, the popular ones first. */
  readonly paths: readonly string[]
  readonly site: string
  /** What happens in each minute, in order. */
  readonly acts: readonly Act[]
  close(): Promise<void>
}

const page = `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Proved</title>
<h1>Every byte of this page was proved</h1>
<p>It came from one of three upstreams. One of them lies now and then, and you do not see it.</p>
<p><a href="rules.json">rules.json</a></p></html>
`

async function makeContent(blocks: BlockMap): Promise<{ paths: string[]; site: string }> {
  const paths: string[] = []
  for (let number = 0; number < 600; number++) {
    const text = `${JSON.stringify({ title: `Evidence ${number}`, name: `Exhibit ${number}` })}\n`
    const bytes = number % 10 === 9 ? noise(300_000, number) : Buffer.from(text)
    const { cid } = await addFile(blocks, bytes)
    paths.push(`/ipfs/${cid}`)
  }
  const files = { 'index.html': Buffer.from(page), 'rules.json': Buffer.from('{"jurors":3}\n') }
  return { paths, site: `/ipfs/${await addDirectory(blocks, files)}/` }
}

export async function startWorld(): Promise<DemoWorld> {
  const blocks: BlockMap = new Map()
  const content = await makeContent(blocks)
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
    ...content,
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
    say: 'the pinning service is down: uploads are kept here, and are owed to it',
    run() {
      service.script = () => ({ status: 503, text: 'maintenance' })
    },
  },
  {
    atSecond: 50,
    say: 'the pinning service is back: it gets what it is owed',
    run() {
      service.script = undefined
    },
  },
]
