// One request as a client of the process table makes it, in a connection of its own, and all that is known of it where it has no answer.
import { type OutgoingHttpHeaders, request } from 'node:http'

/** `cut`: an answer that began and broke off; `reset`: the connection ended without one; `refused`: there was no connection. */
export type Outcome = 'answered' | 'cut' | 'reset' | 'refused'

export type Asked = {
  readonly outcome: Outcome
  readonly status: number
  /** 503 with the time after which to come again. */
  readonly isToldToWait: boolean
  readonly body: Buffer
  readonly beganAt: number
  /** When its head was handed to the system; undefined: there was no connection. */
  readonly sentAt: number | undefined
  readonly endedAt: number
}

export type Question = { readonly body?: Uint8Array; readonly headers?: OutgoingHttpHeaders }

export function ask(url: string, { body, headers = {} }: Question = {}): Promise<Asked> {
  const beganAt = performance.now()
  return new Promise((resolve) => {
    const pieces: Buffer[] = []
    let sentAt: number | undefined
    let [status, isToldToWait] = [0, false]
    const end = (outcome: Outcome) => {
      const endedAt = performance.now()
      resolve({ outcome, status, isToldToWait, body: Buffer.concat(pieces), beganAt, sentAt, endedAt })
    }
    const outgoing = request(url, { method: body ? 'POST' : 'GET', agent: false, headers }, (response) => {
      status = response.statusCode ?? 0
      isToldToWait = status === 503 && response.headers['retry-after'] !== undefined
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', () => end('cut'))
      response.on('end', () => end(response.complete ? 'answered' : 'cut'))
    })
    outgoing.on('socket', (socket) =>
      socket.once('connect', () => {
        sentAt = performance.now()
      }),
    )
    outgoing.on('error', () => end(sentAt === undefined ? 'refused' : status > 0 ? 'cut' : 'reset'))
    outgoing.end(body)
  })
}
