// Queries of uploads and their holders. A list reads at most 20,000 uploads for one page.
import { CID } from 'multiformats/cid'
import type { Profile } from '../../backends/pinning/contract.ts'
import { codec, hash } from '../core/cid.ts'
import type { Asked, Counts, Entry, Ledger, OtherHolder, Row, Standing, StoreReader, Value, Waiting } from './store.ts'

type Read = StoreReader['read']

const maxRead = 20_000

const entry = `select u.id, u.cid, u.name, u.profile, u.bytes, u.car_bytes, u.at, u.blocks is not null is_here,
(select json_group_array(json_array(name, kind, state, tries, not_before, class, why)) from holder where upload = u.id) holders
from upload u`

/** `slow`: reads what takes long. */
export function createLedger(read: Read, slow: Read): Ledger {
  const entries = async (sql: string, ...args: readonly Value[]): Promise<Entry[]> =>
    (await read(sql, args)).map(entryOf)

  return {
    find: async (cid) => (await entries(`${entry} where u.cid = ?`, cid.toV1().bytes))[0],
    async page(asked) {
      const { where, args } = conditionsOf(asked)
      const { limit, after = 0 } = asked
      const range = await read('select id from upload where id > ? order by id limit 1 offset ?', [after, maxRead - 1])
      const last = (range[0]?.id as number | undefined) ?? Number.MAX_SAFE_INTEGER
      const found = await entries(
        `${entry} where u.id > ? and u.id <= ? and ${where} order by u.id limit ?`,
        ...[after, last, ...args, limit],
      )
      const end = found.length >= limit ? found.at(-1)?.id : last
      return { entries: found, next: end === Number.MAX_SAFE_INTEGER ? undefined : end }
    },
    due: (holder, limit) =>
      entries(
        `${entry} join holder h on h.upload = u.id where h.name = ? and h.state = 'pending' order by h.not_before limit ?`,
        ...[holder, limit],
      ),
    async waiting() {
      const [all, holders] = await Promise.all([read(waitingSql), read(waitingHoldersSql)])
      const { uploads, bytes, oldest } = all[0] as Row
      return {
        uploads: Number(uploads),
        bytes: Number(bytes),
        oldestAt: oldest === null ? undefined : Number(oldest),
        holders: holders as unknown as Waiting['holders'],
      }
    },
    waitingPage: (limit) => entries(`${entry} where u.id in (${waitingIds}) order by u.at limit ?`, limit),
    async others(configured) {
      const marks = configured.map(() => '?').join(', ')
      const rows = await slow(othersSql(marks), [...configured, ...configured])
      return rows as unknown as readonly OtherHolder[]
    },
    async counts() {
      const [all, holders] = await Promise.all([
        slow('select count(*) uploads, coalesce(sum(bytes), 0) bytes from upload'),
        slow('select name holder, kind, state, count(*) uploads from holder group by name, kind, state'),
      ])
      const { uploads, bytes } = all[0] as Row
      return { uploads: Number(uploads), bytes: Number(bytes), holders: holders as unknown as Counts['holders'] }
    },
  }
}

const waitingIds = "select distinct upload from holder where state = 'pending'"
const waitingSql = `select count(*) uploads, coalesce(sum(bytes), 0) bytes, min(at) oldest from upload where id in (${waitingIds})`
const waitingHoldersSql = `select name holder, kind, count(*) uploads from holder where state = 'pending' group by name, kind`

const othersSql = (marks: string): string => `select h.name holder,
sum(h.state = 'pending') waiting,
sum(h.state = 'pinned' and u.blocks is null and not exists
  (select 1 from holder o where o.upload = h.upload and o.state = 'pinned' and o.name in (${marks}))) alone
from holder h join upload u on u.id = h.upload where h.name not in (${marks}) group by h.name`

/** v0 is how the older profile spells it. */
export function cidOf(bytes: Uint8Array, profile: string): CID {
  const cid = CID.decode(bytes)
  const isV0 = profile === 'unixfs-v0-2015' && cid.code === codec.dagPb && cid.multihash.code === hash.sha256
  return isV0 ? cid.toV0() : cid
}

function entryOf(row: Row): Entry {
  const profile = row.profile as Profile
  return {
    id: row.id as number,
    cid: cidOf(row.cid as Uint8Array, profile),
    ...(typeof row.name === 'string' && { name: row.name }),
    profile,
    bytes: row.bytes as number,
    carBytes: row.car_bytes as number,
    at: row.at as number,
    isHere: row.is_here === 1,
    holders: holdersOf(JSON.parse(row.holders as string) as readonly HolderRow[]),
  }
}

type HolderRow = [
  name: string,
  kind: Standing['kind'],
  state: Standing['state'],
  tries: number,
  notBefore: number,
  failure: Standing['class'] | null,
  why: string | null,
]

const holdersOf = (rows: readonly HolderRow[]): Record<string, Standing> =>
  Object.fromEntries(
    rows.map(([name, kind, state, tries, notBefore, failure, why]) => [
      name,
      {
        kind,
        state,
        tries,
        ...(notBefore > 0 && { notBefore }),
        ...(failure !== null && failure !== undefined && { class: failure }),
        ...(why !== null && { why }),
      },
    ]),
  )

function conditionsOf({ name, state, holder, configured = [], since, until, minBytes, maxBytes }: Asked): {
  readonly where: string
  readonly args: readonly Value[]
} {
  const where: string[] = ['true']
  const args: Value[] = []
  const need = (sql: string, ...values: readonly Value[]): void => {
    where.push(sql)
    args.push(...values)
  }
  if (name !== undefined) need(`u.name like ? escape '\\'`, `%${name.replace(/[\\%_]/g, '\\$&')}%`)
  if (since !== undefined) need('u.at >= ?', since)
  if (until !== undefined) need('u.at <= ?', until)
  if (minBytes !== undefined) need('u.bytes >= ?', minBytes)
  if (maxBytes !== undefined) need('u.bytes <= ?', maxBytes)
  const some = 'exists (select 1 from holder h where h.upload = u.id'
  if (holder !== undefined && state === 'missing') need(`not ${some} and h.name = ?)`, holder)
  else if (holder !== undefined) need(`${some} and h.name = ? and h.state = ?)`, holder, state ?? 'pinned')
  else if (state === 'missing')
    need(`(${['false', ...configured.map(() => `not ${some} and h.name = ?)`)].join(' or ')})`, ...configured)
  else if (state !== undefined) need(`${some} and h.state = ?)`, state)
  return { where: where.join(' and '), args }
}
