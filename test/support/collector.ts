// A small collector of OpenTelemetry: keeps the spans that are posted to it, or misbehaves on command.
import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { gunzipSync } from 'node:zlib'

export type CollectedSpan = {
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId?: string
  readonly traceState?: string
  readonly name: string
  readonly kind: number
  readonly startTimeUnixNano: string
  readonly endTimeUnixNano: string
  readonly status?: { readonly code: number }
  readonly facts: Readonly<Record<string, unknown>>
}

type Value = { stringValue?: string; intValue?: string; doubleValue?: number; boolValue?: boolean }
type Attribute = { readonly key: string; readonly value: Value }
type Body = {
  readonly resourceSpans: readonly {
    readonly resource: { readonly attributes: readonly Attribute[] }
    readonly scopeSpans: readonly {
      readonly spans: readonly (CollectedSpan & { attributes: readonly Attribute[] })[]
    }[]
  }[]
}

export interface Collector {
  readonly url: string
  readonly posts: { readonly path: string; readonly headers: IncomingHttpHeaders; readonly body: string }[]
  readonly spans: readonly CollectedSpan[]
  /** Of the service, as the last post says. */
  readonly resource: Readonly<Record<string, unknown>>
  /** A status; or it takes the request and never answers. */
  answer: number | 'hang'
  says: string
  close(): Promise<void>
}

export async function startCollector(): Promise<Collector> {
  const posts: Collector['posts'] = []
  const taken: Body[] = []
  const server = createServer((request, response) => {
    const pieces: Buffer[] = []
    request.on('data', (piece: Buffer) => pieces.push(piece))
    request.on('end', () => {
      const sent = Buffer.concat(pieces)
      const body = (request.headers['content-encoding'] === 'gzip' ? gunzipSync(sent) : sent).toString()
      posts.push({ path: request.url ?? '', headers: request.headers, body })
      const { answer } = collector
      if (answer === 'hang') return
      if (answer === 200) taken.push(JSON.parse(body) as Body)
      response.writeHead(answer, { 'content-type': 'application/json' }).end(collector.says)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const collector: Collector = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    posts,
    answer: 200,
    says: '{}',
    get spans() {
      const all = taken.flatMap(({ resourceSpans }) => resourceSpans.flatMap(({ scopeSpans }) => scopeSpans))
      return all.flatMap(({ spans }) =>
        spans.map(({ attributes, ...span }) => ({ ...span, facts: factsOf(attributes) })),
      )
    },
    get resource() {
      return factsOf(taken.at(-1)?.resourceSpans[0]?.resource.attributes ?? [])
    },
    close() {
      server.closeAllConnections()
      return new Promise((resolve) => server.close(() => resolve()))
    },
  }
  return collector
}

const factsOf = (attributes: readonly Attribute[]): Record<string, unknown> =>
  Object.fromEntries(
    attributes.map(({ key, value: { stringValue, intValue, doubleValue, boolValue } }) => [
      key,
      stringValue ?? (intValue === undefined ? (doubleValue ?? boolValue) : Number(intValue)),
    ]),
  )
