// Which requests another process of this gateway answers: those whose content it fetches at this moment, so that one answer of an
// upstream serves both; and, at a worker, all that is not content.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { CID } from 'multiformats/cid'
import { parseCid, parseLeaf } from '../../core/cid.ts'
import type { Hosts } from '../../http/hosts/hosts.ts'
import { readTarget } from '../../http/wire/request-target.ts'
import { isInner } from '../../team/inner-door.ts'
import type { Team } from '../../team/team.ts'

export interface Elsewhere {
  /** True: another process answers it. */
  take(request: IncomingMessage, response: ServerResponse): boolean
}

export type ElsewhereOptions = {
  readonly team: Team
  readonly hosts: Pick<Hosts, 'contentOf' | 'keyOf'>
  readonly mayBeHere: (cid: CID) => boolean
  /** Answers it in this process. */
  readonly here: (request: IncomingMessage, response: ServerResponse) => void
  /** The owner cannot be reached. */
  readonly refuse: (request: IncomingMessage, response: ServerResponse) => void
}

export function createElsewhere({ team, hosts, mayBeHere, here, refuse }: ElsewhereOptions): Elsewhere {
  /** Undefined: it is no plain content of this gateway, or it is malformed. */
  function contentOf(request: IncomingMessage): string | undefined {
    const { method, url = '' } = request
    if (method !== 'GET' && method !== 'HEAD') return undefined
    // As most of them are. What else may be wrong with one is answered alike by every process.
    if (url.startsWith('/ipfs/') && hosts.keyOf(request) === url) return url.split('?', 1)[0]
    try {
      const path = hosts.contentOf(request, readTarget(request))
      return path?.startsWith('/ipfs/') ? path : undefined
    } catch {
      return undefined
    }
  }

  function handOnToHolder(path: string, request: IncomingMessage, response: ServerResponse): boolean {
    const holder = team.underWay.holderOf(path)
    if (holder === undefined) return false
    team.handOn(request, response, holder, () => here(request, response))
    return true
  }

  return {
    take(request, response) {
      // One that was handed on goes no further.
      if (isInner(request)) return false
      const path = contentOf(request)
      if (path === undefined) {
        if (team.index === 0) return false
        team.handOn(request, response, 0, () => refuse(request, response))
        return true
      }
      if (handOnToHolder(path, request, response)) return true
      const text = path.split('/', 3)[2] ?? ''
      const root = parseLeaf(text) ?? parseCid(text)
      if (root && !mayBeHere(root)) {
        // The look at the disk took a while, in which another one may have begun.
        if (handOnToHolder(path, request, response)) return true
        const letGo = team.underWay.hold(path)
        if (letGo) response.once('close', letGo)
      }
      return false
    },
  }
}
