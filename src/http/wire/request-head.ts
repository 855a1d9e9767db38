// A request as far as its head tells: one of `node:http`, or one that the front reads and answers by itself.
import type { IncomingMessage } from 'node:http'

export type RequestHead = Pick<IncomingMessage, 'method' | 'url' | 'headers' | 'rawHeaders' | 'socket'>
