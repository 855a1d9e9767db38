// The rest of test/http/signals.test.ts: the further ways in which a gateway is started and signalled.
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, before, describe, it } from 'node:test'
import { answers, byNpm, byNpx, byOldNode, kill, launch, until, type Way } from '../support/launched.ts'

describe('signals to the starter of a gateway', () => {
  let folder = ''
  let config = ''
  const started: number[] = []
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'cidgate-signals-'))
    config = join(folder, 'config.yaml')
    await writeFile(
      config,
      `listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ndata: ${folder}/data\nretrieval: { upstreams: [] }\n`,
    )
  })
  afterEach(() => {
    for (const pid of started.splice(0)) kill(pid, 'SIGKILL')
  })
  after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }))

  const stopping: readonly [Way, readonly NodeJS.Signals[]][] = [
    [byOldNode, ['SIGTERM', 'SIGKILL']],
    // npm passes no SIGHUP on: it ends, and the gateway with it.
    [byNpm, ['SIGTERM', 'SIGHUP']],
    // The shell of npx waits when it alone gets a SIGINT; a terminal sends one to the gateway as well.
    [byNpx, ['SIGTERM', 'SIGHUP']],
  ]
  for (const [way, signals] of stopping)
    for (const signal of signals)
      it(`${signal} to ${way.name} → gateway stops`, async () => {
        const { child, url } = await launch(way, { config, started })
        child.kill(signal)
        await until(async () => !(await answers(url)), 'the gateway still answers')
      })
})
