// The head of a response that is sent repeatedly, as text and as the list that `writeHead` accepts.
import { STATUS_CODES } from 'node:http'

export type ReadyHead = {
  readonly status: number
  /** A flat list of names and values, as writeHead accepts it. */
  readonly headers: readonly string[]
  /** The status line and the headers. */
  readonly lines: string
}

export function readyHead(status: number, headers: readonly string[]): ReadyHead {
  const pieces = [`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n`]
  for (let at = 0; at < headers.length; at += 2)
    pieces.push(headers[at] as string, ': ', headers[at + 1] as string, '\r\n')
  return { status, headers, lines: pieces.join('') }
}
