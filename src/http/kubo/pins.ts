// `pin/add` finds a DAG and sends it to the providers; `pin/ls` lists the recorded uploads;
// `pin/rm` deletes them.
import type { CID } from 'multiformats/cid'
import { walkDag } from '../../content/dag/walk.ts'
import { parseRoot } from '../../content/path.ts'
import { wayFrom } from '../../content/way.ts'
import { Failure } from '../../core/failure.ts'
import type { Pins } from '../../upload/pins/pins.ts'
import { argOf, argsOf, badCall, isOn, type KuboCall, notDone, optionsIn, sendJson, spellingIn } from './call.ts'
import { sendLines } from './stream.ts'

export async function addPin({ request, query, session, signal, response, deps }: KuboCall): Promise<void> {
  const given = optionsIn(query, { r: 'recursive', n: 'name' })
  if (!isOn(given, 'recursive', true)) throw notDone('recursive=false', 'a DAG is pinned whole')
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
  const { query } = call
  const given = optionsIn(query, { t: 'type', s: 'stream', n: 'name', q: 'quiet' })
  if (given.get('name')) throw badCall('pin names are not supported: leave name out')
  const type = given.get('type') ?? 'all'
  if (!['all', 'recursive', 'direct', 'indirect'].includes(type))
    throw badCall(`type=${type} is not one of all, recursive, direct, indirect`)
  const isStream = isOn(given, 'stream', false)
  const asked = query.getAll('arg').length > 0 ? [parseRoot(argOf(query))] : undefined
  const listed = asked ? pinned(call, asked) : type === 'all' || type === 'recursive' ? everything(call) : []
  if (isStream) {
    async function* lines() {
      for await (const cid of listed) yield { Cid: cid, Type: 'recursive', Name: '' }
    }
    return sendLines(call, lines())
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
    if (!(await deps.uploads.pins.find(cid)))
      throw new Failure('not-found', `path '${cid}' is not pinned`, { source: 'client' })
    yield cid.toString()
  }
}

const pageOfPins = 1000

async function* everything({ deps }: KuboCall): AsyncGenerator<string> {
  for (let after: number | undefined, isFirst = true; isFirst || after !== undefined; isFirst = false) {
    const page = await deps.uploads.pins.list({ limit: pageOfPins, after })
    for (const { cid } of page.pins) yield cid
    after = page.next === undefined ? undefined : Number(page.next)
  }
}

/** Requires a token that may delete: other clients could delete what others uploaded. */
export async function removePins(call: KuboCall): Promise<void> {
  const { request, query, signal, deps } = call
  const token = deps.tokens.checkMayDelete(request.headers)
  const { pins } = deps.uploads
  const given = optionsIn(query, { r: 'recursive' })
  if (!isOn(given, 'recursive', true)) throw notDone('recursive=false', 'a DAG is pinned whole')
  const spelled = spellingIn(given)
  const cids = argsOf(query).map(parseRoot)
  for (const cid of cids) if (!(await pins.find(cid))) throw notPinned(cid)
  const removed: string[] = []
  for (const cid of cids) {
    signal.throwIfAborted()
    // The access log has no queries, and the operator needs to know which token deleted what.
    const tell = (isGone: boolean) =>
      deps.log('info', 'pin.removed', { cid: cid.toString(), isGone, ...(token !== undefined && { token }) })
    await removePin(pins, cid, removed, tell)
    removed.push(spelled(cid))
  }
  sendJson(call, { Pins: removed })
}

async function removePin(
  pins: Pins,
  cid: CID,
  before: readonly string[],
  tell: (isGone: boolean) => void,
): Promise<void> {
  const also = before.length > 0 ? `; removed before it: ${before.join(', ')}` : ''
  const removal = await pins.remove(cid)
  if (removal === 'unknown') throw notPinned(cid, also)
  if (removal === 'busy')
    throw new Failure('overloaded', `${cid} is being uploaded now: remove it when its client has an answer${also}`, {
      source: 'ours',
      retryAfterMs: 1000,
    })
  tell(removal.isGone)
  if (removal.isGone) return
  const outcomes = removal.providers.map(({ why, ...one }) => ({ ...one, ...(why !== undefined && { detail: why }) }))
  throw new Failure('broken', `${cid} is not gone from every provider: remove it again${also}`, {
    source: 'provider',
    facts: { outcomes },
  })
}

/** Kubo's message, which its clients search for. */
const notPinned = (cid: CID, also = ''): Failure =>
  new Failure('not-found', `not pinned or pinned indirectly: ${cid}${also}`, { source: 'client' })
