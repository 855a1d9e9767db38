// Bounds the answers that wait behind others in one connection. A client may send a thousand requests at once and read no
// answer: Node reads them all, and each waits in memory, hot ones too, which nothing else counts.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { muteParser } from './mute-parser.ts'

export type PipelineLimits = {
  /** Behind one connection. The last one closes it, and what comes later is not answered. */
  readonly perSocket: number
  /** Behind all connections together. Beyond that, a connection with more than `free` of them is cut. */
  readonly inAll: number
  readonly free: number
}

// Some kibibytes each. Programs that pipeline send a few dozen at once.
const usual: PipelineLimits = { perSocket: 128, inAll: 4096, free: 8 }

export interface Pipelines {
  /**
   * Counts a request. False: it is not to be answered, because its connection has enough to read, or ends with an answer before it.
   * What stands behind such an answer may be the body of the request before, as others read it: it is not even looked at.
   */
  enter(request: IncomingMessage, response: ServerResponse): boolean
  /** The last answer that waits in this connection. */
  lastOf(socket: Socket): ServerResponse | undefined
  /** How many answers wait behind others. */
  readonly size: number
}

/**
 * Before 24, Node says nothing of answers that wait when their connection closes: what counts requests would count them for ever, and
 * what works for them would go on.
 */
function sayClosed(open: ReadonlySet<ServerResponse>): void {
  for (const response of open) {
    response.destroy()
    response.emit('close')
  }
}

/** On an answer that waits behind another one of its connection: that one. */
const behind = Symbol('behind')
type Behind = ServerResponse & { [behind]?: ServerResponse | undefined }

/** Whether a request that has waited for its turn is not to be handled any more: its connection ended, or ends before its answer. */
export function isCutOff({ socket }: IncomingMessage, response: Behind): boolean {
  const isEnding = response.destroyed || socket.destroyed || socket.writableEnded
  const isCut = isEnding || response[behind]?.shouldKeepAlive === false
  // Nor is what stands behind it.
  if (isCut) response.shouldKeepAlive = false
  return isCut
}

type Line = {
  count: number
  isFull: boolean
  last: ServerResponse | undefined
  /** Of which nothing was heard yet. */
  readonly open: Set<ServerResponse>
}

export function createPipelines({ perSocket, inAll, free } = usual): Pipelines {
  const waiting = new WeakMap<Socket, Line>()
  let total = 0

  function lineOf(socket: Socket): Line {
    let line = waiting.get(socket)
    if (!line) {
      line = { count: 0, isFull: false, last: undefined, open: new Set() }
      waiting.set(socket, line)
      const ended = line
      socket.once('close', () => {
        total -= ended.count
        ended.count = 0
        ended.last = undefined
        setImmediate(sayClosed, ended.open)
      })
    }
    return line
  }

  function refuse(socket: Socket): false {
    muteParser(socket)
    return false
  }

  return {
    enter({ socket }, response: Behind) {
      // An answer that need not wait has its socket already: the usual one costs nothing here.
      if (response.socket !== null) return socket.writableEnded ? refuse(socket) : true
      const before = waiting.get(socket)?.last ?? (Reflect.get(socket, '_httpMessage') as ServerResponse | null)
      response[behind] = before ?? undefined
      if (socket.destroyed || before?.shouldKeepAlive === false) return refuse(socket)
      const line = lineOf(socket)
      line.count++
      total++
      if (total > inAll && line.count > free) socket.destroy()
      if (line.isFull || socket.destroyed) return refuse(socket)
      line.last = response
      const { open } = line
      open.add(response)
      response.once('close', () => open.delete(response))
      response.once('finish', () => {
        response[behind] = undefined
        if (line.last === response) line.last = undefined
        if (line.count === 0) return
        line.count--
        total--
      })
      if (line.count >= perSocket) {
        line.isFull = true
        response.shouldKeepAlive = false
      }
      return true
    },
    lastOf: (socket) => waiting.get(socket)?.last,
    get size() {
      return total
    },
  }
}
