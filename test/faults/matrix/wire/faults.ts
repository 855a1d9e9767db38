// What comes over a socket that no usual client sends, with the outcomes that are right: those that the gateway itself brings about.
import type { How, Outcome, Said } from './visit.ts'

export type WireFault = {
  readonly name: string
  /** What each of them sends; `path` is that of a hot file, `large` that of 8 MiB. */
  readonly says: (path: string, large: string) => Said
  readonly right: readonly Outcome[]
  readonly sockets?: number
  readonly how?: How
  /** The option that ends it: not sooner than that says, and not much later. */
  readonly clock?: 'limits.headersTimeout' | 'limits.keepAliveTimeout' | 'limits.writeTimeout' | 'upload.minRate'
  /** Uploads beside it are taken as well. */
  readonly alsoUploads?: true
  /** It is in `npm test`. */
  readonly isQuick?: true
}

const head = 'Host: gate.example\r\n'
const close = `${head}Connection: close\r\n`
const inner = 'GET /ipfs/x HTTP/1.1\r\nHost: a\r\n\r\n'
const uploadHead = `POST /add HTTP/1.1\r\n${head}Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000\r\n\r\n`
const partHead = '--b\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n'

const once =
  (complete: (path: string, large: string) => string) =>
  (path: string, large: string): Said => ({ complete: complete(path, large) })

/** What two readers could take for different requests, and paths that could lead out of the content. */
const ambiguous: readonly WireFault[] = [
  {
    name: 'Content-Length and Transfer-Encoding',
    says: once(
      () => `POST /add HTTP/1.1\r\n${head}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${inner}`,
    ),
    right: [400],
    isQuick: true,
  },
  {
    name: 'two Content-Length',
    says: once(() => `POST /add HTTP/1.1\r\n${head}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd${inner}`),
    right: [400],
    isQuick: true,
  },
  {
    name: 'a Transfer-Encoding that is none',
    says: once(() => `POST /add HTTP/1.1\r\n${head}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n${inner}`),
    right: [400, 501],
    isQuick: true,
  },
  {
    name: 'a header with a space before its colon',
    says: once((path) => `GET ${path} HTTP/1.1\r\n${head}Transfer-Encoding : chunked\r\n\r\n`),
    right: [400],
    isQuick: true,
  },
  {
    name: 'a folded header',
    says: once((path) => `GET ${path} HTTP/1.1\r\n${head}a: b\r\n c\r\nConnection: close\r\n\r\n`),
    right: [200, 400],
    isQuick: true,
  },
  {
    name: 'lines that end in LF alone',
    says: once((path) => `GET ${path} HTTP/1.1\nHost: a\n\n`),
    right: [400],
    isQuick: true,
  },
  {
    name: 'an absolute URL of another host',
    says: once((path) => `GET http://evil.example${path} HTTP/1.1\r\n${close}\r\n`),
    right: [400],
    isQuick: true,
  },
  {
    name: 'a path with %2e%2e and %2f',
    says: once((path) => `GET ${path}/%2e%2e%2f%2e%2e%2fetc/passwd HTTP/1.1\r\n${close}\r\n`),
    right: [400, 404],
    isQuick: true,
  },
]

/** Each of them is there for as long as the gateway lets it. */
const slow: readonly WireFault[] = [
  {
    name: '100 clients that send a byte of their headers each second',
    says: (path) => ({ dripped: `GET ${path} HTTP/1.1\r\n${head}\r\n` }),
    right: [408],
    sockets: 100,
    clock: 'limits.headersTimeout',
  },
  {
    name: '40 clients that send a byte of their upload each second',
    says: () => ({ complete: uploadHead + partHead, dripped: 'x'.repeat(100) }),
    right: [408],
    sockets: 40,
    clock: 'upload.minRate',
    alsoUploads: true,
  },
  {
    name: '100 clients that read a byte of 8 MiB each second',
    says: once((_path, large) => `GET ${large} HTTP/1.1\r\n${head}\r\n`),
    right: ['cut'],
    sockets: 100,
    how: 'reads slowly',
    clock: 'limits.writeTimeout',
  },
  {
    name: '100 clients that never read on in 8 MiB',
    says: once((_path, large) => `GET ${large} HTTP/1.1\r\n${head}\r\n`),
    right: ['cut'],
    sockets: 100,
    how: 'stops reading',
    clock: 'limits.writeTimeout',
  },
  {
    name: '4,000 connections that send nothing',
    says: () => ({}),
    right: [408],
    sockets: 4000,
    how: 'idles',
    clock: 'limits.headersTimeout',
  },
  {
    name: '4,000 connections that are idle behind an answer',
    says: once((path) => `GET ${path} HTTP/1.1\r\n${head}\r\n`),
    right: ['closed'],
    sockets: 4000,
    how: 'idles',
    clock: 'limits.keepAliveTimeout',
  },
]

export const wireFaults: readonly WireFault[] = [
  {
    name: '100,000 headers',
    says: once((path) => `GET ${path} HTTP/1.1\r\n${head}${'a: b\r\n'.repeat(100_000)}\r\n`),
    right: [431, 'cut'],
  },
  {
    name: 'a URL of 1 MB',
    says: once(() => `GET /${'x'.repeat(1_000_000)} HTTP/1.1\r\n${close}\r\n`),
    right: [414, 431, 'cut'],
  },
  ...ambiguous,
  { name: 'HTTP/1.0', says: once((path) => `GET ${path} HTTP/1.0\r\n\r\n`), right: [200], isQuick: true },
  {
    name: 'a client that asks for a hot file and closes its half at once',
    says: once((path) => `GET ${path} HTTP/1.1\r\n${close}\r\n`),
    right: [200],
    how: 'half-closes',
  },
  {
    name: '200 clients that leave in the middle of 8 MiB',
    says: once((_path, large) => `GET ${large} HTTP/1.1\r\n${head}\r\n`),
    right: ['left'],
    sockets: 200,
    how: 'leaves',
  },
  ...slow,
]
