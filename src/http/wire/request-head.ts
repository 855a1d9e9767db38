// The head of a request: from `node:http`, or from the front, which parses and answers it itself.
import type { IncomingMessage } from 'node:http'

export type RequestHead = Pick<IncomingMessage, 'method' | 'url' | 'headers' | 'rawHeaders' | 'socket'>
