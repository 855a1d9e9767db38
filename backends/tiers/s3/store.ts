// S3 as a Keyv storage adapter. It obeys Keyv's own contract, so that any Keyv may have it: a second `set` wins, `delete`
// says whether something was there, `clear` keeps to the namespace, text comes back as text. Made for what the compatible
// stores really do: 403 for a key that is missing, 412 for one that is there, conditional writes that are not known.
import { randomBytes } from 'node:crypto'
import { EventEmitter } from 'node:events'
import type { KeyvStoreAdapter, StoredData } from 'keyv'
import { maxBlockBytes } from '../../../src/core/cid.ts'
import {
  defaultRequestMs,
  isBadKey,
  isMissing,
  openS3,
  type S3Answer,
  type S3Call,
  type S3Client,
  type S3Connection,
  statusOf,
} from './client.ts'

export type S3StoreOptions = S3Connection & {
  readonly bucket: string
  /** What every key begins with in the bucket. */
  readonly prefix?: string | undefined
  /**
   * `text`, by default: what Keyv's serialiser makes. `blocks`: bytes as they are, 2 MiB at most, under a key that is their
   * hash, so that what is there already is never written again.
   */
  readonly holds?: 'text' | 'blocks' | undefined
  /** Whether 403 on GET and HEAD means that the key is missing; `auto` finds out with a probe. */
  readonly missing403?: boolean | 'auto' | undefined
  /** Aborts the call that is being made. */
  readonly signalOf?: (() => AbortSignal | undefined) | undefined
}

const conflictTries = 3
const deletesAtOnce = 16
// Credentials that were withdrawn look like missing keys, so what a probe found about 403 is believed for this long.
const believeMs = 600_000

export class S3Store extends EventEmitter implements KeyvStoreAdapter {
  readonly opts: { readonly dialect: 's3'; readonly url: string }
  /** Set by Keyv, which puts `<namespace>:` before each key itself. */
  namespace: string | undefined
  readonly #options: S3StoreOptions
  readonly #prefix: string
  readonly #isForBlocks: boolean
  #opening: Promise<S3Client> | undefined
  #conditional = true
  /** Whether the write of a block that is on its way succeeds. */
  readonly #writing = new Map<string, Promise<boolean>>()
  #missing403: { readonly is: boolean; readonly until: number } | undefined
  #deciding: Promise<boolean> | undefined

  constructor(options: S3StoreOptions) {
    super()
    this.#options = options
    this.#prefix = options.prefix ?? ''
    this.#isForBlocks = options.holds === 'blocks'
    this.opts = { dialect: 's3', url: `s3://${options.bucket}/${this.#prefix}` }
  }

  async get<Value>(key: string): Promise<StoredData<Value> | undefined> {
    const bytes = await this.#read(key)
    return (this.#isForBlocks ? bytes : bytes?.toString()) as StoredData<Value> | undefined
  }

  async #read(key: string): Promise<Buffer | undefined> {
    const answer = await this.orMissing(() => this.call({ method: 'GET', key }))
    if (!answer || answer.bytes) return answer?.bytes
    await this.call({ method: 'DELETE', key })
    return undefined
  }

  /** S3 has no time to live for one object: Keyv writes the end into the value, a lifecycle rule of the bucket tidies up. */
  async set(key: string, value: string | Uint8Array): Promise<boolean> {
    const bytes = typeof value === 'string' ? Buffer.from(value) : value
    if (this.#isForBlocks) await this.#putOnce(key, bytes, this.#signal())
    else await this.#put(key, bytes, this.#signal())
    return true
  }

  async #put(
    key: string,
    body: Uint8Array,
    signal: AbortSignal | undefined,
    condition: Readonly<Record<string, string>> = {},
  ): Promise<void> {
    const type = this.#isForBlocks ? 'application/vnd.ipld.raw' : 'text/plain; charset=utf-8'
    await this.call({ method: 'PUT', key, body, headers: { 'content-type': type, ...condition }, signal })
  }

  /**
   * One write of a block at a time: the callers behind it find it written, or write it themselves. Stores exist that spoil an
   * object which two requests write at once, and each write that is not needed costs money.
   */
  async #putOnce(key: string, bytes: Uint8Array, signal: AbortSignal | undefined): Promise<void> {
    for (let before = this.#writing.get(key); before; before = this.#writing.get(key)) if (await before) return
    signal?.throwIfAborted()
    const { promise, resolve } = Promise.withResolvers<boolean>()
    this.#writing.set(key, promise)
    let done = false
    try {
      await this.#putNew(key, bytes, signal)
      done = true
    } finally {
      this.#writing.delete(key)
      resolve(done)
    }
  }

  /** Writes what is not there yet. */
  async #putNew(key: string, bytes: Uint8Array, signal: AbortSignal | undefined): Promise<void> {
    for (let turn = 1; this.#conditional; turn++) {
      try {
        return await this.#put(key, bytes, signal, { 'if-none-match': '*' })
      } catch (error) {
        const status = statusOf(error)
        if (status === 412) return // it is there: the key is the hash of the bytes
        if (status === 409 && turn < conflictTries) continue
        if (status !== 400 && status !== 501) throw error
        await this.#put(key, bytes, signal) // a store that does not know conditional writes; or the write itself is bad
        this.#conditional = false
        return
      }
    }
    await this.#put(key, bytes, signal)
  }

  /** Whether something was there, which S3 itself does not say. */
  async delete(key: string): Promise<boolean> {
    if (!(await this.has(key))) return false
    await this.call({ method: 'DELETE', key })
    return true
  }

  async has(key: string): Promise<boolean> {
    return (await this.orMissing(() => this.call({ method: 'HEAD', key }))) !== undefined
  }

  /** Objects of this namespace, one by one: DeleteObjects needs a checksum that several stores do not know. */
  async clear(): Promise<void> {
    const prefix = this.#prefix + (this.namespace === undefined ? '' : `${this.namespace}:`)
    if (prefix === '')
      throw new RangeError('clearing a whole bucket is not supported: give the store a prefix or a namespace')
    for (let token: string | undefined = ''; token !== undefined; ) {
      const query: Readonly<Record<string, string>> = {
        'list-type': '2',
        prefix,
        ...(token !== '' && { 'continuation-token': token }),
      }
      const page = String((await this.call({ method: 'GET', query })).bytes ?? '')
      // Not every store looks at all that it is asked for.
      const keys = textsOf(page, 'Key').filter((key) => key.startsWith(prefix))
      for (let from = 0; from < keys.length; from += deletesAtOnce) {
        const some = keys.slice(from, from + deletesAtOnce).map((key) => key.slice(this.#prefix.length))
        await Promise.all(some.map((key) => this.call({ method: 'DELETE', key })))
      }
      token = textsOf(page, 'NextContinuationToken')[0]
    }
  }

  async disconnect(): Promise<void> {
    const client = await this.#opening?.catch(() => undefined)
    this.#opening = undefined
    client?.close()
  }

  /** Writes, reads and deletes an object of its own, then asks for one that cannot be there, and sees what 403 means. */
  async probe(signal: AbortSignal | undefined): Promise<void> {
    const key = `probe-${randomBytes(8).toString('hex')}`
    await this.#putOnce(key, Uint8Array.of(1), signal)
    const { bytes } = await this.call({ method: 'GET', key, signal })
    await this.call({ method: 'DELETE', key, signal })
    if (bytes?.[0] !== 1) throw new RangeError('an object was lost, or changed, that was just written to it')
    try {
      await this.call({ method: 'GET', key: `${key}-absent`, signal })
    } catch (error) {
      if (!isMissing(error) && statusOf(error) !== 403) throw error
      this.#missing403 = { is: statusOf(error) === 403, until: Date.now() + believeMs }
      return
    }
    throw new RangeError('it has an object that was never written')
  }

  /** A failure is not remembered. */
  load(): Promise<S3Client> {
    this.#opening ??= openS3({ ...this.#options, maxBytes: this.#isForBlocks ? maxBlockBytes : undefined }).catch(
      (error: unknown) => {
        this.#opening = undefined
        throw error
      },
    )
    return this.#opening
  }

  /** `key` without the prefix; undefined: the bucket. The signal is by default that of the call that is being made. */
  async call({ key, signal = this.#signal(), ...call }: S3Call): Promise<S3Answer> {
    const client = await this.load()
    return client.call({ ...call, signal, key: key === undefined ? undefined : this.#prefix + key })
  }

  /** What a call answers, or undefined where the store says, in its own way, that there is no such key. */
  async orMissing<T>(ask: () => Promise<T>): Promise<T | undefined> {
    try {
      return await ask()
    } catch (error) {
      if (isMissing(error)) return undefined
      if (statusOf(error) === 403 && !isBadKey(error) && (await this.#is403Missing())) return undefined
      throw error
    }
  }

  async #is403Missing(): Promise<boolean> {
    const { missing403 = 'auto', requestMs = defaultRequestMs } = this.#options
    if (missing403 !== 'auto') return missing403
    if (this.#missing403 && Date.now() < this.#missing403.until) return this.#missing403.is
    // On a clock of its own: many calls may wait for it, and the one that began it may leave.
    this.#deciding ??= this.probe(AbortSignal.timeout(requestMs))
      .then(
        () => this.#missing403?.is ?? false,
        () => false, // it cannot even write: the credentials, not the key
      )
      .finally(() => {
        this.#deciding = undefined
      })
    return this.#deciding
  }

  #signal(): AbortSignal | undefined {
    return this.#options.signalOf?.()
  }
}

/** What stands in the elements of this name. */
const textsOf = (xml: string, name: string): string[] =>
  [...xml.matchAll(new RegExp(`<${name}>([^<]*)</${name}>`, 'g'))].map(([, text = '']) =>
    text.replace(/&(?:#(\d+)|#x([\da-f]+)|(\w+));/gi, (whole, decimal, hex, entity) =>
      decimal || hex
        ? String.fromCodePoint(Number.parseInt(decimal ?? hex, decimal ? 10 : 16))
        : (entities[entity] ?? whole),
    ),
  )

const entities: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" }
