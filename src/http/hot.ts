// Complete small answers, ready to be written: the raw header lines and the body, by the URL they were asked with.
import { LRUCache } from 'lru-cache'

export type HotAnswer = {
  /** Names and values in one flat list, as writeHead takes them. */
  readonly headers: readonly string[]
  readonly body: Buffer
  readonly etag: string
}

export interface Hot {
  get(url: string): HotAnswer | undefined
  /** Keeps a 200 that is whole, proved and will never change. */
  add(url: string, answer: HotAnswer): void
  forget(url: string): void
  clear(): void
  readonly maxItem: number
  readonly bytes: number
  readonly items: number
}

const entryBytes = 2048 // headers, key and what the map costs

export function createHot({ maxBytes, maxItem }: { readonly maxBytes: number; readonly maxItem: number }): Hot {
  const answers =
    maxBytes > 0
      ? new LRUCache<string, HotAnswer>({
          maxSize: maxBytes,
          sizeCalculation: ({ body }) => body.byteLength + entryBytes,
        })
      : undefined
  return {
    get: (url) => answers?.get(url),
    add(url, answer) {
      if (answer.body.byteLength <= maxItem) answers?.set(url, answer)
    },
    forget: (url) => answers?.delete(url),
    clear: () => answers?.clear(),
    maxItem: maxBytes > 0 ? Math.min(maxItem, maxBytes - entryBytes) : 0,
    get bytes() {
      return answers?.calculatedSize ?? 0
    },
    get items() {
      return answers?.size ?? 0
    },
  }
}
