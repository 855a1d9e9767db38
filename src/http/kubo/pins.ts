// `pin/add` finds a DAG and gives it to the providers; `pin/ls` lists the recorded uploads.
import type { CID } from 'multiformats/cid'
import { walkDag } from '../../content/dag/walk.ts'
import { parseRoot } from '../../content/path.ts'
import { wayFrom } from '../../content/way.ts'
import { Failure } from '../../core/failure.ts'
import { cidOf, nameOf } from '../../upload/spool/journal.ts'
import { writeAll } from '../wire/write.ts'
import { argOf, badCall, isOn, type KuboCall, optionsIn, sendJson } from './call.ts'

export async function addPin({ request, query, session, signal, response, deps }: KuboCall): Promise<void> {
  const given = optionsIn(query, { r: 'recursive', n: 'name' })
  if (!isOn(given, 'recursive', true))
    throw badCall('recursive=false is not supported: a DAG is pinned whole. Leave it out')
  if (given.get('name')) throw badCall('pin names are not supported: leave name out')
  const cid = parseRoot(argOf(query))
  session.pass(cid, [])
  const slot = await deps.uploads.enter(deps.clientOf(request), signal)
  try {
    const bytes = await session.get(cid, { cid, segments: [], scope: 'all' })
    session.begun()
    const way = wayFrom(cid)
    await deps.uploads.keep(cid, walkDag(session, { cid, bytes }, { scope: 'all', dups: false, way }), slot)
    sendJson({ response, deps }, { Pins: [cid.toString()] })
  } finally {
    slot.leave()
  }
}

export async function listPins(call: KuboCall): Promise<void> {
  const { query, response, deps } = call
  const given = optionsIn(query, { t: 'type', s: 'stream', n: 'name', q: 'quiet' })
  if (given.get('name')) throw badCall('pin names are not supported: leave name out')
  const type = given.get('type') ?? 'all'
  if (!['all', 'recursive', 'direct', 'indirect'].includes(type))
    throw badCall(`type=${type} is not one of all, recursive, direct, indirect`)
  const isStream = isOn(given, 'stream', false)
  const asked = query.getAll('arg').length > 0 ? [parseRoot(argOf(query))] : undefined
  const listed = asked ? pinned(call, asked) : type === 'all' || type === 'recursive' ? everything(call) : []
  if (isStream) {
    response.setHeader('Content-Type', 'application/json')
    response.setHeader('X-Chunked-Output', '1')
    async function* lines() {
      for await (const cid of listed)
        yield Buffer.from(`${JSON.stringify({ Cid: cid, Type: 'recursive', Name: '' })}\n`)
    }
    await writeAll(response, lines(), deps)
    return
  }
  const keys: Record<string, { Type: string; Name: string }> = {}
  let count = 0
  for await (const cid of listed) {
    if (++count > mostListed) throw badCall(`there are more than ${mostListed} pins; ask with stream=true`)
    keys[cid] = { Type: 'recursive', Name: '' }
  }
  sendJson(call, { Keys: keys })
}

const mostListed = 100_000

async function* pinned({ deps }: KuboCall, cids: readonly CID[]): AsyncGenerator<string> {
  for (const cid of cids) {
    const isOpen = deps.uploads.confirmation.open().some((entry) => entry.accepted && entry.cid === nameOf(cid))
    if (!isOpen && !(await deps.uploads.journal.record(cid)))
      throw new Failure('not-found', `path '${cid}' is not pinned`, { source: 'client' })
    yield cid.toString()
  }
}

async function* everything({ deps }: KuboCall): AsyncGenerator<string> {
  for (const entry of deps.uploads.confirmation.open()) if (entry.accepted) yield cidOf(entry).toString()
  for await (const record of deps.uploads.journal.records()) yield cidOf(record).toString()
}
