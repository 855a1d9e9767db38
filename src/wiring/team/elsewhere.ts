// Which requests another process of this gateway answers: those whose content it fetches at this moment, so that one answer of an
// upstream serves both; and, at a worker, all that is not content.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { CID } from 'multiformats/cid'
import { isProvable } from '../../core/block.ts'
import { parseCid, parseLeaf } from '../../core/cid.ts'
import type { Hosts } from '../../http/hosts/hosts.ts'
import type { Limits } from '../../http/limits/limits.ts'
import { readTarget } from '../../http/wire/request-target.ts'
import { decline, isInner } from '../../team/inner-door.ts'
import { isWorker, type Team } from '../../team/team.ts'

export interface Elsewhere {
  /** True: another process answers it. */
  take(request: IncomingMessage, response: ServerResponse): boolean
}

export type ElsewhereOptions = {
  readonly team: Team
  readonly hosts: Pick<Hosts, 'contentOf' | 'keyOf'>
  readonly surelyHas: (cid: CID) => boolean
  readonly limits: Pick<Limits, 'inFlight' | 'room' | 'wouldRefuse'>
  /** Answers it in this process. */
  readonly here: (request: IncomingMessage, response: ServerResponse) => void
  /** The owner cannot be reached. */
  readonly refuse: (request: IncomingMessage, response: ServerResponse) => void
}

export function createElsewhere({ team, hosts, surelyHas, limits, here, refuse }: ElsewhereOptions): Elsewhere {
  /** Undefined: it is no plain content of this gateway. Throws for what is malformed. */
  function contentOf(request: IncomingMessage): string | undefined {
    const { method, url = '' } = request
    const isRead = method === 'GET' || method === 'HEAD'
    // As most of them are. What else may be wrong with one is answered alike by every process.
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

  /** The process that accepted it may have the room that this one lacks. */
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
        // Each process refuses it alike, before it could mean one thing to this one and another thing to the next.
        return false
      }
      // One that was handed on goes no further than back to where it came from.
      if (isInner(request)) return declines(path, response)
      if (path === undefined) {
        if (!isWorker(team)) return false
        team.toOwner(request, response, () => refuse(request, response))
        return true
      }
      // What is refused here costs no look at a disk, and nobody is sent here for it.
      if (isFull() || limits.wouldRefuse(request)) return false
      if (handOnToHolder(path, request, response)) return true
      const text = path.split('/', 3)[2] ?? ''
      const root = parseLeaf(text) ?? parseCid(text)
      if (root && isProvable(root) && !surelyHas(root)) {
        // The look at the disk took a while, in which another one may have begun.
        if (handOnToHolder(path, request, response)) return true
        const letGo = team.underWay.hold(path)
        if (letGo) response.once('close', letGo)
      }
      return false
    },
  }
}
