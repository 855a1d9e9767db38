// The operator's own Kubo node over its RPC: single blocks and IPNS records, found by its own
// means.
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { maxBlockBytes } from '../../src/core/cid.ts'
import { Failure } from '../../src/core/failure.ts'
import { duration } from '../../src/core/units.ts'
import { type HttpQuestion, wholeOf } from './ask.ts'
import { fromIterable, maxRecordBytes, type Upstream, type UpstreamContext, type UpstreamKind } from './contract.ts'
import { connected, emptyCid, httpOptions, keyText, nothingIfAbsent, probed } from './options.ts'

const options = z.strictObject({
  ...httpOptions,
  timeout: duration().prefault('30s').describe('How long the node may search for a block.'),
  offline: z.boolean().default(false).describe('The node answers from its own store only, and resolves no names.'),
})

// The record in base64, and other events of the node's search.
const maxEventBytes = 16 * maxRecordBytes
const valueEvent = 5

export const kubo: UpstreamKind<typeof options> = { use: 'kubo', options, create: createKubo }

function createKubo(settings: z.output<typeof options>, context: UpstreamContext): Upstream {
  const { name } = context
  const { close, question, headers: headersOf } = connected(settings, context)
  const headers = headersOf()
  const base = settings.url.replace(/\/+$/, '')

  const call = (command: string, query: Readonly<Record<string, string>>, more: Partial<HttpQuestion> = {}) => {
    const url = `${base}/api/v0/${command}?${new URLSearchParams(query)}`
    return { ...question, url, method: 'POST', headers, expects: 'application/json', ...more } as const
  }

  async function block(cid: CID, signal: AbortSignal): Promise<Uint8Array> {
    const query = {
      arg: cid.toString(),
      timeout: `${settings.timeout}ms`,
      ...(settings.offline && { offline: 'true' }),
    }
    const { bytes, trailers } = await wholeOf(
      call('block/get', query, { cid, expects: undefined }),
      maxBlockBytes,
      signal,
    )
    // Kubo sends 200 first and may fail later: then a trailer has the reason.
    if (trailers['x-stream-error'])
      throw new Failure('upstream-error', `${name} failed after it had begun to answer (X-Stream-Error)`, {
        source: 'upstream',
      })
    return bytes
  }

  async function record(key: CID, signal: AbortSignal): Promise<Uint8Array> {
    const query = { arg: `/ipns/${keyText(key)}` }
    return recordIn(name, (await wholeOf(call('routing/get', query), maxEventBytes, signal)).bytes)
  }

  return {
    name,
    traits: { dag: false, canBlock: () => true, connections: settings.maxConnections },
    ask: fromIterable(async function* ({ cid }, signal) {
      yield { cid, bytes: await block(cid, signal) }
    }),
    ...(!settings.offline && { record }),
    async probe(signal) {
      await wholeOf(call('version', {}), maxEventBytes, signal)
      // `version` needs no permission; this command needs that of reading.
      return probed(context, () => block(emptyCid, signal).catch(nothingIfAbsent))
    },
    close,
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
