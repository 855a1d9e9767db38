// Forwards requests to another process of this gateway: those for content that it is fetching, so
// that one response of an upstream serves both; and, at a worker, everything except content.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { CID } from 'multiformats/cid'
import { isProvable, parseCid, parseLeaf } from '../../core/cid.ts'
import type { Hosts } from '../../http/hosts/hosts.ts'
import type { Limits } from '../../http/limits/limits.ts'
import { readTarget } from '../../http/wire/request-target.ts'
import { decline, isInner } from '../../team/inner-door.ts'
import { isWorker, type Team } from '../../team/team.ts'

export interface Elsewhere {
  /** Returns true if another process handles it. */
  take(request: IncomingMessage, response: ServerResponse): boolean
}

export type ElsewhereOptions = {
  readonly team: Team
  readonly hosts: Pick<Hosts, 'contentOf' | 'keyOf'>
  readonly holds: (cid: CID) => boolean
  readonly limits: Pick<Limits, 'inFlight' | 'room' | 'wouldRefuse'>
  /** Handles it in this process. */
  readonly here: (request: IncomingMessage, response: ServerResponse) => void
  /** Called if the owner is unreachable. */
  readonly refuse: (request: IncomingMessage, response: ServerResponse) => void
}

export function createElsewhere({ team, hosts, holds, limits, here, refuse }: ElsewhereOptions): Elsewhere {
  /** Undefined unless it is plain content of this gateway. Throws for a malformed request. */
  function contentOf(request: IncomingMessage): string | undefined {
    const { method, url = '' } = request
    const isRead = method === 'GET' || method === 'HEAD'
    // The most common form. Every process reports other errors in it alike.
    if (isRead && url.startsWith('/ipfs/') && hosts.keyOf(request) === url) return url.split('?', 1)[0]
    const target = readTarget(request)
    const path = isRead ? hosts.contentOf(request, target) : undefined
    return path?.startsWith('/ipfs/') ? path : undefined
  }

  function handOnToHolder(path: string, request: IncomingMessage, response: ServerResponse): boolean {
    const holder = team.underWay.holderOf(path)
    if (holder === undefined) return false
    team.handOn(request, response, holder, () => here(request, response))
    return true
  }

  const isFull = (): boolean => limits.inFlight >= limits.room

  /** The accepting process may have the capacity that this one lacks. */
  function declines(path: string | undefined, response: ServerResponse): boolean {
    if (path === undefined || !isFull()) return false
    decline(response)
    return true
  }

  return {
    take(request, response) {
      let path: string | undefined
      try {
        path = contentOf(request)
      } catch {
        // Malformed: every process refuses it alike, so it is not forwarded.
        return false
      }
      // A forwarded request goes no further: it is handled here, or returned.
      if (isInner(request)) return declines(path, response)
      if (path === undefined) {
        if (!isWorker(team)) return false
        team.toOwner(request, response, () => refuse(request, response))
        return true
      }
      // A request that will be refused costs no disk read, and is not forwarded.
      if (isFull() || limits.wouldRefuse(request)) return false
      if (handOnToHolder(path, request, response)) return true
      const text = path.split('/', 3)[2] ?? ''
      const root = parseLeaf(text) ?? parseCid(text)
      if (root && isProvable(root) && !holds(root)) {
        // Another process may have begun during the disk read.
        if (handOnToHolder(path, request, response)) return true
        const letGo = team.underWay.hold(path)
        if (letGo) response.once('close', letGo)
      }
      return false
    },
  }
}
