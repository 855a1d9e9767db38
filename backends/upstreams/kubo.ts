// The operator's own Kubo node over its RPC: single blocks and IPNS records, found by its own
// means.
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { duration } from '../../src/core/units.ts'
import { ask } from './ask.ts'
import { createAgent } from './connect.ts'
import { maxRecordBytes, type ProbeReport, type Upstream, type UpstreamContext, type UpstreamKind } from './contract.ts'
import { httpOptions, keyText } from './options.ts'
import { finding, readBlock, readOne } from './trustless.ts'

const options = z.strictObject({
  ...httpOptions,
  timeout: duration().prefault('30s').describe('How long the node itself looks for a block.'),
  offline: z
    .boolean()
    .default(false)
    .describe('Only what lies in the node is asked for: it looks nowhere else, and for no names.'),
})

// The record in base64, and other events of the node's search.
const maxEventBytes = 16 * maxRecordBytes
const valueEvent = 5
// An identity CID: every node has it.
const emptyCid = CID.parse('bafkqaaa')

export const kubo: UpstreamKind<typeof options> = { use: 'kubo', options, create: createKubo }

function createKubo(settings: z.output<typeof options>, { name, userAgent, clock, trace }: UpstreamContext): Upstream {
  const agent = createAgent({
    ...settings,
    connectMs: settings.connectTimeout,
    connections: settings.maxConnections,
    trace,
  })

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
      firstByteMs: settings.firstByteTimeout,
      idleMs: settings.bodyTimeout,
    })
  }

  async function block(cid: CID, signal: AbortSignal): Promise<Uint8Array> {
    const query = {
      arg: cid.toString(),
      timeout: `${settings.timeout}ms`,
      ...(settings.offline && { offline: 'true' }),
    }
    const answer = await call('block/get', query, undefined, signal)
    const bytes = await readOne(name, answer, cid)
    // Kubo sends 200 first and may fail later: then a trailer has the reason.
    const late = answer.trailers()['x-stream-error']
    if (late)
      throw new Failure('upstream-error', `${name} failed after it had begun to answer (X-Stream-Error)`, {
        source: 'upstream',
      })
    return bytes
  }

  async function record(key: CID, signal: AbortSignal): Promise<Uint8Array> {
    const answer = await call('routing/get', { arg: `/ipns/${keyText(key)}` }, 'application/json', signal)
    return recordIn(name, await readBlock(name, answer, maxEventBytes))
  }

  return {
    name,
    traits: { dag: false, canBlock: () => true, connections: settings.maxConnections },
    block,
    async *dag() {
      throw new Failure('not-found', `${name} is asked for single blocks only`, { source: 'upstream' })
    },
    ...(!settings.offline && { record }),
    async probe(signal) {
      const began = clock.monotonic()
      const answer = await call('version', {}, 'application/json', signal)
      await readBlock(name, answer)
      // `version` needs no permission; this command needs that of reading.
      const findings: string[] = []
      let lied = false
      const raw = await finding(findings, 'block/get', async () => {
        const bytes = await block(emptyCid, signal).catch((error: unknown) => {
          if (!isFailure(error, 'not-found')) throw error
        })
        lied = bytes !== undefined && bytes.byteLength > 0
        if (lied) throw new Failure('hash-mismatch', 'it sent wrong bytes for the empty CID', { source: 'upstream' })
      })
      const report: ProbeReport = { usable: raw, raw, car: false, findings, ms: Math.round(clock.monotonic() - began) }
      return lied ? { ...report, lied } : report
    },
    close: () => agent.destroy(),
  }
}

/** Finds the value among the events of a search, one JSON document per line. */
function recordIn(name: string, lines: Uint8Array): Uint8Array {
  try {
    for (const line of Buffer.from(lines).toString('utf8').split('\n')) {
      if (line.trim() === '') continue
      const { Type, Extra } = JSON.parse(line) as { Type?: unknown; Extra?: unknown }
      if (Type === valueEvent && typeof Extra === 'string') return Buffer.from(Extra, 'base64')
    }
  } catch (cause) {
    throw new Failure('upstream-error', `${name} answered routing/get with lines that are not JSON`, {
      source: 'upstream',
      cause,
    })
  }
  throw new Failure('not-found', `${name} found no IPNS record`, { source: 'upstream' })
}
