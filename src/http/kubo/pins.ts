// `pin/add` finds a DAG and sends it to the providers; `pin/ls` lists the recorded uploads;
// `pin/rm` deletes them.
import type { CID } from 'multiformats/cid'
import { walkWhole } from '../../content/dag/walk.ts'
import { parseRoot } from '../../content/resolve.ts'
import { Failure, malformed } from '../../core/failure.ts'
import type { Pins } from '../../upload/pins.ts'
import { isOn, optionsIn, pinName } from '../add/add.ts'
import { argOf, argsOf, type KuboCall, notDone, sendJson, sendLines, spellingIn } from './call.ts'

export async function addPin({ request, query, session, signal, response, deps }: KuboCall): Promise<void> {
  const given = optionsIn(query, { r: 'recursive', n: 'name' })
  if (!isOn(given, 'recursive', true)) throw notDone('recursive=false', 'a DAG is pinned completely')
  const name = pinName(given.get('name'))
  const cid = parseRoot(argOf(query))
  session.pass(cid, [])
  const slot = await deps.uploads.enter(deps.clientOf(request), signal)
  try {
    const bytes = await session.get(cid, { cid, segments: [], scope: 'all' })
    session.begun()
    await deps.uploads.keep(cid, walkWhole(session, { cid, bytes }), slot, name)
    sendJson({ response, deps }, { Pins: [cid.toString()] })
  } finally {
    slot.leave()
  }
}

export async function listPins(call: KuboCall): Promise<void> {
  const { query } = call
  const given = optionsIn(query, { t: 'type', s: 'stream', n: 'name', q: 'quiet' })
  const name = pinName(given.get('name'))
  const withNames = isOn(given, 'names') || name !== undefined
  const type = given.get('type') ?? 'all'
  if (!['all', 'recursive', 'direct', 'indirect'].includes(type))
    throw malformed(`type=${type} is not one of all, recursive, direct, indirect`)
  const isStream = isOn(given, 'stream')
  const nameIn = (pin: Listed): string => (withNames ? (pin.name ?? '') : '')
  const asked = query.getAll('arg').length > 0 ? [parseRoot(argOf(query))] : undefined
  const listed = asked ? pinned(call, asked) : type === 'all' || type === 'recursive' ? everything(call, name) : []
  if (isStream) {
    async function* lines() {
      for await (const pin of listed) yield { Cid: pin.cid, Type: 'recursive', Name: nameIn(pin) }
    }
    return sendLines(call, lines())
  }
  const keys: Record<string, { Type: string; Name: string }> = {}
  let count = 0
  for await (const pin of listed) {
    if (++count > maxListed) throw malformed(`there are more than ${maxListed} pins; ask with stream=true`)
    keys[pin.cid] = { Type: 'recursive', Name: nameIn(pin) }
  }
  sendJson(call, { Keys: keys })
}

type Listed = { readonly cid: string; readonly name?: string | undefined }

const maxListed = 100_000

async function* pinned({ deps }: KuboCall, cids: readonly CID[]): AsyncGenerator<Listed> {
  for (const cid of cids) {
    const pin = await deps.uploads.pins.find(cid)
    if (!pin) throw new Failure('not-found', `path '${cid}' is not pinned`, { source: 'client' })
    yield { cid: cid.toString(), name: pin.name }
  }
}

const pageOfPins = 1000

async function* everything({ deps }: KuboCall, name: string | undefined): AsyncGenerator<Listed> {
  for (let after: number | undefined, isFirst = true; isFirst || after !== undefined; isFirst = false) {
    const page = await deps.uploads.pins.list({ limit: pageOfPins, after, name })
    yield* page.pins
    after = page.next === undefined ? undefined : Number(page.next)
  }
}

/** Requires a token that may delete: other clients could delete what others uploaded. */
export async function removePins(call: KuboCall): Promise<void> {
  const { request, query, signal, deps } = call
  const token = deps.tokens.checkMayDelete(request.headers)
  const { pins } = deps.uploads
  const given = optionsIn(query, { r: 'recursive' })
  if (!isOn(given, 'recursive', true)) throw notDone('recursive=false', 'a DAG is pinned completely')
  const spelled = spellingIn(given)
  const cids = argsOf(query).map(parseRoot)
  for (const cid of cids) if (!(await pins.find(cid))) throw notPinned(cid)
  const removed: string[] = []
  for (const cid of cids) {
    signal.throwIfAborted()
    // The access log has no queries, and the operator needs to know which token deleted what.
    const logRemoval = (isGone: boolean) =>
      deps.log('info', 'pin.removed', { cid: cid.toString(), isGone, ...(token !== undefined && { token }) })
    await removePin(pins, cid, removed, logRemoval)
    removed.push(spelled(cid))
  }
  sendJson(call, { Pins: removed })
}

async function removePin(
  pins: Pins,
  cid: CID,
  before: readonly string[],
  logRemoval: (isGone: boolean) => void,
): Promise<void> {
  const also = before.length > 0 ? `; removed before it: ${before.join(', ')}` : ''
  const removal = await pins.remove(cid)
  if (removal === 'unknown') throw notPinned(cid, also)
  if (removal === 'busy')
    throw new Failure('overloaded', `${cid} is being uploaded now: remove it when its client has an answer${also}`, {
      source: 'ours',
      retryAfterMs: 1000,
    })
  logRemoval(removal.isGone)
  if (removal.isGone) return
  const outcomes = removal.providers.map(({ why, ...one }) => ({ ...one, ...(why !== undefined && { detail: why }) }))
  throw new Failure('upstream-error', `${cid} is not gone from every provider: remove it again${also}`, {
    source: 'provider',
    facts: { outcomes },
  })
}

/** Kubo's message, which its clients search for. */
const notPinned = (cid: CID, also = ''): Failure =>
  new Failure('not-found', `not pinned or pinned indirectly: ${cid}${also}`, { source: 'client' })
