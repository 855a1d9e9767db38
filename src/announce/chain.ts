// The chain of advertisements, in the store. Pins that are not announced yet become a batch; a
// batch that lost a pin is removed, and the rest of it is announced again. The head is the newest
// row, so that it commits together with the lists that it names.
import { randomBytes } from 'node:crypto'
import * as dagJson from '@ipld/dag-json'
import { CID } from 'multiformats/cid'
import type { Statement, Store, Value } from '../store/store.ts'
import {
  type Advertisement,
  encodeAdvertisement,
  encodeEntries,
  gatewayMetadata,
  type Identity,
  maxChunkEntries,
  noEntries,
} from './advertisement.ts'

export interface Chain {
  /** The newest advertisement; undefined before the first. */
  head(): Promise<CID | undefined>
  /**
   * The bytes of an advertisement or a list; undefined if the chain has no such CID. Rejects if the
   * disk fails.
   */
  block(cid: string): Promise<Uint8Array | undefined>
  /**
   * Announces new pins and removes lost ones, in one commit for each batch. Resolves with the head.
   * Calls must not overlap.
   */
  publish(): Promise<CID | undefined>
  /** The next `publish` checks every pin again, and removes those that are denied. */
  recheckDenylists(): void
  counts(): Promise<{ readonly advertisements: number; readonly contexts: number; readonly roots: number }>
}

type ChainOptions = {
  readonly store: Pick<Store, 'read' | 'write'>
  readonly identity: Identity
  /** Multiaddrs of this gateway. */
  readonly addresses: readonly string[]
  /** True: announces every block. False: roots only. */
  readonly blocks: boolean
  readonly isDenied: (cid: CID) => boolean
  /** A value that changes whenever the denylists do. */
  readonly denyRevision?: () => string | undefined
}

/** The maximum number of uploads in a batch: their roots fill one list. */
const maxBatch = maxChunkEntries
const maxChunks = 400
const pageOf = 10_000

type Announced = { readonly upload: number; readonly cid: CID }
type Gone = {
  readonly contexts: readonly number[]
  readonly uploads: ReadonlySet<number>
  readonly heldAgain: readonly number[]
}
type New = { readonly statements: Statement[]; head: CID | undefined }

const isHeld = "exists (select 1 from holder h where h.upload = u.id and h.kind = 'here' and h.state = 'pinned')"

export function createChain(options: ChainOptions): Chain {
  const { store, identity, addresses, blocks, isDenied, denyRevision = () => undefined } = options
  /** Uploads up to this id were checked. */
  let checkedId = 0
  let isToReconsider = true
  let revision: string | undefined

  const one = async (sql: string, ...args: readonly Value[]) => (await store.read(sql, args))[0]

  async function head(): Promise<CID | undefined> {
    const row = await one('select cid from announce_ad order by seq desc limit 1')
    return row && CID.parse(row['cid'] as string)
  }

  /** Marks announced uploads that are denied by now as gone. */
  async function noteDenied(): Promise<void> {
    for (let after = 0; ; ) {
      const rows = await store.read('select upload, cid from announced where upload > ? order by upload limit ?', [
        after,
        pageOf,
      ])
      const denied = rows.filter((row) => row['cid'] && isDenied(cidOf(row)))
      if (denied.length > 0)
        await store.write(
          denied.map((row) => ({
            sql: 'insert or ignore into announce_gone values (?)',
            args: [row['upload'] ?? null],
          })),
        )
      if (rows.length < pageOf) return
      after = rows.at(-1)?.['upload'] as number
    }
  }

  /** Reads the uploads that are marked as gone; an upload that is held again is not gone. */
  async function lostUploads(): Promise<Gone> {
    const rows = await store.read(
      `select g.upload, a.context, a.cid, ${isHeld} held from announce_gone g join announced a on a.upload = g.upload left join upload u on u.id = g.upload limit ?`,
      [pageOf],
    )
    const really = rows.filter((row) => row['held'] !== 1 || isDenied(cidOf(row)))
    return {
      contexts: [...new Set(really.map((row) => row['context'] as number))],
      uploads: new Set(really.map((row) => row['upload'] as number)),
      heldAgain: rows.flatMap((row) => (really.includes(row) ? [] : [row['upload'] as number])),
    }
  }

  /** The uploads that remain of removed batches. They join the next batch. */
  async function restOf(contexts: readonly number[], without: ReadonlySet<number>): Promise<Announced[]> {
    const rest: Announced[] = []
    for (const context of contexts)
      for (const row of await store.read('select upload, cid from announced where context = ?', [context])) {
        const upload = row['upload'] as number
        if (!without.has(upload) && row['cid']) rest.push({ upload, cid: cidOf(row) })
      }
    return rest
  }

  async function fresh(limit: number): Promise<Announced[]> {
    for (;;) {
      const { found, isLast } = await freshPage(limit)
      if (found.length > 0 || isLast) return found
    }
  }

  async function freshPage(limit: number): Promise<{ readonly found: Announced[]; readonly isLast: boolean }> {
    const rows = await store.read(
      `select u.id upload, u.cid from upload u left join announced a on a.upload = u.id where u.id > ? and a.upload is null and ${isHeld} order by u.id limit ?`,
      [checkedId, limit],
    )
    const last = rows.at(-1)?.['upload'] as number | undefined
    if (last !== undefined) checkedId = last
    const found = rows.flatMap((row) => {
      const cid = cidOf(row)
      return isDenied(cid) ? [] : [{ upload: row['upload'] as number, cid }]
    })
    return { found, isLast: rows.length < limit || limit === 0 }
  }

  /** The multihashes of a batch: its roots, or every block below them. */
  async function multihashesOf(all: readonly Announced[]): Promise<Uint8Array[]> {
    const found = new Map<string, Uint8Array>()
    const add = (bytes: Uint8Array) => found.set(Buffer.from(bytes).toString('base64'), bytes)
    for (const { upload, cid } of all) {
      add(cid.multihash.bytes)
      if (!blocks || found.size >= maxChunks * maxChunkEntries) continue
      const row = await one('select blocks from upload where id = ?', upload)
      if (!row?.['blocks']) continue
      const ids = JSON.stringify(idsIn(row['blocks'] as Uint8Array))
      const keys = await store.read('select key from block where id in (select value from json_each(?))', [ids])
      for (const { key } of keys) add(key as Uint8Array)
    }
    return [...found.values()]
  }

  function advertise(to: New, about: Pick<Advertisement, 'ContextID' | 'Entries' | 'IsRm'>, context: number): void {
    const ad = encodeAdvertisement(
      {
        ...about,
        PreviousID: to.head,
        Provider: identity.peerId,
        Addresses: addresses,
        Metadata: about.IsRm ? new Uint8Array() : gatewayMetadata,
      },
      identity,
    )
    to.head = ad.cid
    to.statements.push({
      sql: 'insert into announce_ad (cid, bytes, context) values (?, ?, ?)',
      args: [ad.cid.toString(), ad.bytes, context],
    })
  }

  async function remove(to: New, contexts: readonly number[]): Promise<void> {
    for (const context of contexts) {
      const row = await one('select bytes from announce_ad where context = ? order by seq limit 1', context)
      if (!row) continue
      advertise(to, { ContextID: contextIn(row['bytes'] as Uint8Array), Entries: noEntries, IsRm: true }, context)
      to.statements.push(
        { sql: 'delete from announced where context = ?', args: [context] },
        { sql: 'delete from announce_chunk where context = ?', args: [context] },
      )
    }
  }

  async function add(to: New, all: readonly Announced[]): Promise<void> {
    if (all.length === 0) return
    const row = await one('select max(context) last from announce_ad')
    const context = ((row?.['last'] as number | null) ?? 0) + 1
    let next: CID | undefined
    const multihashes = await multihashesOf(all)
    for (let from = 0; from < multihashes.length; from += maxChunkEntries) {
      const chunk = encodeEntries(multihashes.slice(from, from + maxChunkEntries), next)
      next = chunk.cid
      to.statements.push({
        sql: 'insert into announce_chunk (cid, bytes, context) values (?, ?, ?)',
        args: [chunk.cid.toString(), chunk.bytes, context],
      })
    }
    // The number alone would repeat: a data folder restored from a backup counts on from an older
    // state.
    const ContextID = Buffer.from(`${context}-${randomBytes(8).toString('hex')}`)
    advertise(to, { ContextID, Entries: next ?? noEntries, IsRm: false }, context)
    const uploads = JSON.stringify(all.map(({ upload }) => upload))
    to.statements.push(
      {
        sql: 'insert or replace into announced (upload, cid, context) select value, (select cid from upload where id = value), ? from json_each(?)',
        args: [context, uploads],
      },
      // Uploads that were deleted since the query above.
      {
        sql: "insert or ignore into announce_gone select a.upload from announced a where a.context = ? and not exists (select 1 from holder h where h.upload = a.upload and h.kind = 'here' and h.state = 'pinned')",
        args: [context],
      },
    )
  }

  async function step(): Promise<boolean> {
    const lost = await lostUploads()
    const rest = await restOf(lost.contexts, lost.uploads)
    const more = await fresh(Math.max(0, maxBatch - rest.length))
    const to: New = { statements: [], head: await head() }
    await remove(to, lost.contexts)
    const settled = JSON.stringify([...lost.uploads, ...lost.heldAgain])
    if (settled !== '[]')
      to.statements.push({
        sql: 'delete from announce_gone where upload in (select value from json_each(?))',
        args: [settled],
      })
    await add(to, [...rest, ...more])
    if (to.statements.length === 0) return false
    await store.write(to.statements)
    return true
  }

  return {
    head,
    async block(cid) {
      const row =
        (await one('select bytes from announce_ad where cid = ?', cid)) ??
        (await one('select bytes from announce_chunk where cid = ? limit 1', cid))
      return row?.['bytes'] as Uint8Array | undefined
    },
    async publish() {
      const denials = denyRevision()
      if (isToReconsider || denials !== revision) {
        await noteDenied()
        checkedId = 0
        isToReconsider = false
        revision = denials
      }
      const before = checkedId
      try {
        while (await step());
      } catch (error) {
        checkedId = before
        throw error
      }
      return head()
    },
    recheckDenylists() {
      isToReconsider = true
    },
    async counts() {
      const row = await one(
        'select (select count(*) from announce_ad) ads, (select count(distinct context) from announced) contexts, (select count(*) from announced) roots',
      )
      const [advertisements, contexts, roots] = ['ads', 'contexts', 'roots'].map((name) => Number(row?.[name] ?? 0))
      return { advertisements: advertisements ?? 0, contexts: contexts ?? 0, roots: roots ?? 0 }
    },
  }
}

const cidOf = (row: { readonly [name: string]: Value }): CID => CID.decode(row['cid'] as Uint8Array)

const contextIn = (advertisement: Uint8Array): Uint8Array => dagJson.decode<Advertisement>(advertisement).ContextID

const idBytes = 6

/** Unpacks the block ids of an upload row. */
function idsIn(packed: Uint8Array): number[] {
  const bytes = Buffer.from(packed.buffer, packed.byteOffset, packed.byteLength)
  return Array.from({ length: bytes.byteLength / idBytes }, (_, index) => bytes.readUIntBE(index * idBytes, idBytes))
}
