// Fast path for the plain GET of a raw leaf that is readable without waiting: in `api` mode its
// response follows from its CID and bytes alone, without a session, router or promise. It applies
// limits and denylists as usual, and leaves every other request to the normal route.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { CID } from 'multiformats/cid'
import { mayBeJson } from '../../content/json.ts'
import { parseLeaf } from '../../core/cid.ts'
import type { AtHandOptions } from '../../core/disk/at-hand.ts'
import { createHostCheck } from '../../core/wire/host.ts'
import { createAccount } from '../../observe/account.ts'
import type { HitAtHand } from '../../retrieval/tiers/stack.ts'
import type { AnswerDeps } from '../content/answer.ts'
import { sharedPlace } from '../content/content-place.ts'
import { deliver } from '../content/deliver.ts'
import { inMemory, json, octets } from '../content/file-body.ts'
import { createAccepts } from '../content/negotiate.ts'
import type { Limits } from '../limits/limits.ts'
import type { Exchange } from '../wire/exchange.ts'
import type { RequestIds } from '../wire/request-id.ts'
import { plainRequest } from './plain-request.ts'

export interface LeafLane {
  /** Returns true if it sent the response. */
  take(request: IncomingMessage, response: ServerResponse): boolean
}

export type LeafLaneDeps = Pick<
  AnswerDeps,
  'hot' | 'compression' | 'tiers' | 'clock' | 'mode' | 'jsonMaxBytes' | 'jsonRule' | 'stalledMs' | 'unread' | 'respond'
> & {
  readonly atHand: (cid: CID, options: AtHandOptions) => HitAtHand | undefined
  /** Throws if the path is denied. */
  readonly visit: (cid: CID, rest: readonly string[]) => void
  readonly limits: Limits
  /** Records the request for metrics and the access log. */
  readonly watch: (request: IncomingMessage, response: ServerResponse) => Exchange
  readonly requestIds: RequestIds
  readonly keyOf: (request: IncomingMessage) => string | undefined
}

type Leaf = { readonly text: string; readonly type: string; readonly held: HitAtHand }

const prefix = '/ipfs/'
const lent: AtHandOptions = { lends: true }

export function createLeafLane(deps: LeafLaneDeps): LeafLane {
  const { hot, limits, requestIds, jsonRule, respond } = deps
  const representation = createAccepts()
  const isHost = createHostCheck()
  const query = new URLSearchParams()
  const session = { begun() {} }

  /** Undefined if the request needs the normal route. */
  function find(request: IncomingMessage): Leaf | undefined {
    const { url = '', rawHeaders } = request
    if (!url.startsWith(prefix)) return undefined
    // Checked first, because reading and verifying a leaf costs more than a refusal.
    if (limits.wouldRefuse(request)) return undefined
    const text = url.slice(prefix.length)
    const cid = parseLeaf(text)
    const plain = cid && plainRequest(rawHeaders, representation, isHost)
    if (!plain || plain.ifNoneMatch !== undefined) return undefined
    try {
      deps.visit(cid, [])
    } catch {
      return undefined
    }
    const held = deps.atHand(cid, lent)
    const type = held && typeOf(cid, held.bytes)
    if (held && type !== undefined) return { text, type, held }
    held?.release?.()
    return undefined
  }

  /** Undefined if detection needs more than the first bytes. */
  function typeOf(cid: CID, bytes: Uint8Array): string | undefined {
    if (bytes.byteLength > deps.jsonMaxBytes || !mayBeJson(bytes)) return octets
    const isJson = jsonRule.known(cid)
    return isJson === undefined ? undefined : isJson ? json : octets
  }

  return {
    take(request, response) {
      const { url, method } = request
      if (method !== 'GET' || deps.mode !== 'api' || deps.keyOf(request) !== url) return false
      const found = find(request)
      if (!found || url === undefined) return false
      const { text, type, held } = found
      const target = { path: url, query, search: '' }
      const place = sharedPlace(target, '', url)
      if (!place) {
        held.release?.()
        return false
      }
      const exchange = deps.watch(request, response)
      exchange.route = 'ipfs'
      exchange.requestId = requestIds.next(request)
      // Checked in this same iteration, but a sibling process may have used up the client's budget.
      const refused = limits.enter(request, response, true)
      if (refused) {
        held.release?.()
        respond.failed(request, response, refused)
        return true
      }
      const account = createAccount(deps.tiers)
      account.tierHit(held.tier)
      exchange.account = account
      const body = {
        ...inMemory(held.bytes, type),
        etag: `"${text}"`,
        isPlain: true,
        release: held.release,
      }
      const about = { request, response, target, place, account, roots: [text], epoch: hot.epoch }
      deliver({ ...about, session, deps }, body).catch((error: unknown) =>
        respond.failed(request, response, error, { account }),
      )
      return true
    },
  }
}
