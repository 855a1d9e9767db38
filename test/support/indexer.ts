// An indexer in the hand of the test: it takes announcements, and walks the chain over HTTP as a real one does.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import { CID } from 'multiformats/cid'
import { type Advertisement, noEntries } from '../../src/announce/advertisement.ts'

export interface TestIndexer {
  readonly url: string
  readonly announced: string[]
  /** What it answers to announcements instead of 204. */
  refuses: number | undefined
  /** Walks the chain at this gateway, by default from its newest announcement. `known`: multihashes in hex. */
  walk(gateway: string, from?: string): Promise<{ readonly known: Set<string>; readonly heads: ReadonlySet<string> }>
  close(): Promise<void>
}

export const hexOf = (cid: string): string => Buffer.from(CID.parse(cid).multihash.bytes).toString('hex')

export async function startIndexer(): Promise<TestIndexer> {
  let last: string | undefined
  const server = createServer(async (request, response) => {
    if (request.method === 'PUT' && request.url === '/announce') {
      const pieces: Buffer[] = []
      for await (const piece of request) pieces.push(piece)
      if (indexer.refuses) return void response.writeHead(indexer.refuses).end('refused')
      const [head] = dagCbor.decode<[CID]>(Buffer.concat(pieces))
      last = head.toString()
      indexer.announced.push(last)
      return void response.writeHead(204).end()
    }
    if (!last) return void response.writeHead(404).end()
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end(JSON.stringify({ LastAdvertisement: { '/': last }, LastError: '' }))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const indexer: TestIndexer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    announced: [],
    refuses: undefined,
    async walk(gateway, from = last) {
      const get = async (cid: CID): Promise<Uint8Array | undefined> => {
        const answer = await fetch(`${gateway}/ipni/v1/ad/${cid}`)
        if (answer.status === 404) return undefined
        if (answer.status !== 200) throw new Error(`${cid}: ${answer.status}`)
        return new Uint8Array(await answer.arrayBuffer())
      }
      const ads = []
      const heads = new Set<string>()
      for (let at = from === undefined ? undefined : CID.parse(from); at; at = ads[0]?.PreviousID) {
        heads.add(at.toString())
        const bytes = await get(at)
        if (!bytes) throw new Error(`a gap at ${at}`)
        ads.unshift(dagJson.decode<Advertisement>(bytes))
      }
      const contexts = new Map<string, string[]>()
      const used = new Set<string>()
      for (const { ContextID, Entries, IsRm } of ads) {
        const context = Buffer.from(ContextID).toString('hex')
        if (IsRm) contexts.delete(context)
        else if (used.has(context)) throw new Error('a context came back')
        else {
          const entries: string[] = []
          for (let next: CID | undefined = Entries.equals(noEntries) ? undefined : Entries; next; ) {
            const bytes = await get(next)
            if (!bytes) break
            const chunk = dagJson.decode<{ readonly Entries: readonly Uint8Array[]; readonly Next?: CID }>(bytes)
            entries.push(...chunk.Entries.map((one) => Buffer.from(one).toString('hex')))
            next = chunk.Next
          }
          contexts.set(context, entries)
        }
        used.add(context)
      }
      return { known: new Set([...contexts.values()].flat()), heads }
    },
    async close() {
      server.closeAllConnections()
      await new Promise<void>((resolve) => server.close(() => resolve()))
    },
  }
  return indexer
}
