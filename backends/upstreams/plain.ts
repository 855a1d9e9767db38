// A gateway that only serves complete files. Verifies by the bytes of a file alone: a raw block is
// the file itself, and a small dag-pb file is rebuilt with the known profiles and compared. Other
// blocks count as not found.
import { importer } from 'ipfs-unixfs-importer'
import { fixedSize } from 'ipfs-unixfs-importer/chunker'
import { balanced } from 'ipfs-unixfs-importer/layout'
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { blockKey, codec, maxBlockBytes } from '../../src/core/cid.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { wholeOf } from './ask.ts'
import { fromIterable, type Upstream, type UpstreamContext, type UpstreamKind } from './contract.ts'
import { connected, contentUrls, emptyCid, gatewayOptions, nothingIfAbsent, probed } from './options.ts'

const options = z.strictObject(gatewayOptions)

const rebuiltBytes = 8 * 1024 * 1024

// Parameters of common importers: the profiles of IPIP-499, and two older combinations.
const habits = [
  { cidVersion: 0, rawLeaves: false, chunk: 256 * 1024, width: 174 },
  { cidVersion: 1, rawLeaves: true, chunk: 1024 * 1024, width: 1024 },
  { cidVersion: 1, rawLeaves: true, chunk: 256 * 1024, width: 174 },
  { cidVersion: 1, rawLeaves: true, chunk: 1024 * 1024, width: 174 },
] as const

export const plain: UpstreamKind<typeof options> = { use: 'plain', options, create: createPlain }

function createPlain(settings: z.output<typeof options>, context: UpstreamContext): Upstream {
  const { name } = context
  const { close, question, headers: headersOf } = connected(settings, context)
  const headers = headersOf('*/*')
  const urlOf = contentUrls(settings.url, {})
  // Caches the leaves of a rebuilt file, which are requested next.
  const rebuilt = new LRUCache<string, Uint8Array>({
    maxSize: rebuiltBytes,
    sizeCalculation: (bytes) => bytes.byteLength || 1,
  })

  async function file(cid: CID, signal: AbortSignal): Promise<Uint8Array> {
    const block = cid.code === codec.raw ? cid : undefined
    const asked = { ...question, url: urlOf(cid), headers, expects: undefined, cid: block }
    return (await wholeOf(asked, maxBlockBytes, signal)).bytes
  }

  async function block(cid: CID, signal: AbortSignal): Promise<Uint8Array> {
    const known = rebuilt.get(blockKey(cid))
    if (known) return known
    const bytes = await file(cid, signal).catch((error: unknown) => {
      throw isFailure(error, 'too-large') ? unprovable(name, cid) : error
    })
    if (cid.code === codec.raw) return bytes
    for (const habit of habits) {
      const blocks = await rebuild(bytes, habit)
      const root = blocks.get(blockKey(cid))
      if (!root) continue
      for (const [key, block] of blocks) rebuilt.set(key, block)
      return root
    }
    throw unprovable(name, cid)
  }

  return {
    name,
    traits: {
      dag: false,
      canBlock: (cid) => cid.code === codec.raw || cid.code === codec.dagPb,
      connections: settings.maxConnections,
    },
    ask: fromIterable(async function* ({ cid }, signal) {
      yield { cid, bytes: await block(cid, signal) }
    }),
    // It may not know the empty CID; but an HTML page or a redirect elsewhere is a fault.
    probe: (signal) => probed(context, () => file(emptyCid, signal).catch(nothingIfAbsent)),
    close,
  }
}

async function rebuild(
  bytes: Uint8Array,
  { cidVersion, rawLeaves, chunk, width }: (typeof habits)[number],
): Promise<Map<string, Uint8Array>> {
  const blocks = new Map<string, Uint8Array>()
  const store = {
    async put(cid: CID, block: Uint8Array) {
      blocks.set(blockKey(cid), block)
      return cid
    },
  }
  const content = (async function* () {
    yield bytes
  })()
  const imported = importer([{ content }], store as unknown as Parameters<typeof importer>[1], {
    cidVersion,
    rawLeaves,
    reduceSingleLeafToSelf: true,
    chunker: fixedSize({ chunkSize: chunk }),
    layout: balanced({ maxChildrenPerNode: width }),
  })
  for await (const _entry of imported);
  return blocks
}

const unprovable = (name: string, cid: CID): Failure =>
  new Failure(
    'not-found',
    `${name} has nothing that proves ${cid} (files up to ${maxBlockBytes} bytes of known layout only)`,
    {
      source: 'upstream',
    },
  )
