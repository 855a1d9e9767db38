// The operator's own Kubo node, asked over its RPC: single blocks, found by whatever the node is connected to.
import { z } from 'zod'
import { duration } from '../../src/config/units.ts'
import { Failure } from '../../src/failure.ts'
import { ask } from './ask.ts'
import { createAgent } from './connect.ts'
import type { Upstream, UpstreamContext, UpstreamKind } from './contract.ts'
import { httpOptions } from './options.ts'
import { readBlock } from './trustless.ts'

const options = z.strictObject({
  ...httpOptions,
  timeout: duration().prefault('30s').describe('How long the node itself looks for a block.'),
})

export const kubo: UpstreamKind<typeof options> = { use: 'kubo', options, create: createKubo }

function createKubo(settings: z.output<typeof options>, { name, userAgent, clock }: UpstreamContext): Upstream {
  const agent = createAgent({ ...settings, connectMs: settings.connect })

  const call = (
    command: string,
    query: Readonly<Record<string, string>>,
    expects: string | undefined,
    signal: AbortSignal,
  ) => {
    const url = new URL(settings.url)
    url.pathname = `${url.pathname.replace(/\/+$/, '')}/api/v0/${command}`
    for (const [key, value] of Object.entries(query)) url.searchParams.set(key, value)
    return ask({
      name,
      url,
      method: 'POST',
      headers: { ...settings.headers, 'user-agent': userAgent },
      expects,
      agent,
      signal,
      clock,
      firstByteMs: settings.firstByte,
      idleMs: settings.idle,
    })
  }

  return {
    name,
    traits: { dag: false, canBlock: () => true },
    async block(cid, signal) {
      const answer = await call(
        'block/get',
        { arg: cid.toString(), timeout: `${settings.timeout}ms` },
        undefined,
        signal,
      )
      const bytes = await readBlock(name, answer)
      // Kubo says 200 first and may still fail: then the reason comes behind the body.
      const late = answer.trailers()['x-stream-error']
      if (late) throw new Failure('broken', `${name} failed behind its answer`, { source: 'upstream' })
      return bytes
    },
    async *dag() {
      throw new Failure('not-found', `${name} is asked for single blocks only`, { source: 'upstream' })
    },
    async probe(signal) {
      const began = clock.monotonic()
      const answer = await call('version', {}, 'application/json', signal)
      await readBlock(name, answer)
      return { usable: true, raw: true, car: false, findings: [], ms: Math.round(clock.monotonic() - began) }
    },
    close: () => agent.destroy(),
  }
}
