// The line that says now and then how the gateway is, for the question that is asked on the next day.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { addFile, type BlockMap, noise } from '../support/fixtures.ts'
import { fetchAll, type LogLine, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let liar: ProgrammableUpstream
let honest: ProgrammableUpstream
before(async () => {
  const blocks: BlockMap = new Map()
  ;[liar, honest] = await Promise.all([startUpstream({ blocks }), startUpstream({ blocks })])
  liar.fault = { kind: 'wrongBytes', block: 0 }
})
after(() => Promise.all([liar.close(), honest.close()]))

const start = (stateEvery: string | number): Promise<TestGateway> =>
  startGateway({
    upstreams: [
      { name: 'liar', url: liar.url },
      { name: 'honest', url: honest.url },
    ],
    config: {
      log: { stateEvery },
      retrieval: { hedgeDelay: '0s' },
      pinning: { acceptWhileUnavailable: true, providers: [{ name: 'away', use: 'kubo', url: 'http://127.0.0.1:1' }] },
      cache: { tiers: [{ use: 'memory', maxBytes: '4MiB' }] },
    },
  })

type State = {
  readonly tiers: readonly Record<string, unknown>[]
  readonly upstreams: readonly Record<string, unknown>[]
  readonly providers: readonly Record<string, unknown>[]
  readonly waiting: number
}
const statesOf = (log: readonly LogLine[]): State[] =>
  log.filter(({ event }) => event === 'gateway.state').map(({ facts }) => facts as State)

test('tier usage, upstream speed, hash mismatches, pending uploads', async () => {
  const { cid } = await addFile(honest.blocks, noise(20_000, 3))
  const at = await start('50ms')
  try {
    assert.equal((await fetchAll(`${at.url}/ipfs/${cid}`)).status, 200)
    const form = new FormData()
    form.set('data', new Blob(['evidence']), 'a')
    assert.equal((await fetch(`${at.url}/add`, { method: 'POST', body: form })).status, 200)
    const isTold = ({ waiting, providers, upstreams, tiers }: State) =>
      waiting === 1 &&
      providers.some((one) => one['provider'] === 'away' && one['waiting'] === 1) &&
      upstreams.some(({ upstream, hashMismatch }) => upstream === 'liar' && hashMismatch === 1) &&
      upstreams.some(({ upstream, won, p95 }) => upstream === 'honest' && won === 1 && typeof p95 === 'number') &&
      tiers.some(({ tier, bytes, limitBytes }) => tier === 'memory' && Number(bytes) > 20_000 && limitBytes === 4 << 20)
    for (const until = Date.now() + 10_000; !statesOf(at.log).some(isTold); await sleep(20))
      assert.ok(Date.now() < until, JSON.stringify(statesOf(at.log).at(-1)))
  } finally {
    await at.close()
  }
  const told = statesOf(at.log).length
  await sleep(120)
  assert.equal(statesOf(at.log).length, told, 'a gateway that is closed says nothing')
})

test('disabled → no lines', async () => {
  const at = await start(0)
  await sleep(100)
  await at.close()
  assert.deepEqual(statesOf(at.log), [])
})
