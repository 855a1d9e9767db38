// Records as objects in the blocks' bucket. S3 compares and writes in one step: the writer names the ETag that it read.
// With a store that does not know this, the record is read, then written.
import type Keyv from 'keyv'
import { oneOf } from '../../../src/core/wire/http.ts'
import type { StoredRecord } from '../contract.ts'
import { isSame, type RecordSteps } from '../keyv-records.ts'
import { isMissing, statusOf } from './client.ts'
import type { S3Store } from './store.ts'

const maxBytes = 64 * 1024

export function s3Records(): RecordSteps {
  let compares = true
  const storeOf = ({ store }: Keyv): S3Store => store as S3Store

  async function read(keyv: Keyv, key: string, signal: AbortSignal): Promise<StoredRecord | undefined> {
    const store = storeOf(keyv)
    const answer = await store.orMissing(() => store.call({ method: 'GET', key, signal }))
    if (!answer) return undefined
    // What is too large for a record is none, and is written over like one that proves nothing.
    const { bytes = new Uint8Array(), headers } = answer
    return { bytes: bytes.byteLength > maxBytes ? new Uint8Array() : bytes, tag: oneOf(headers['etag']) }
  }

  async function replace(...[keyv, key, body, { over }, signal]: Parameters<RecordSteps['replace']>) {
    const store = storeOf(keyv)
    // Some stores pass over a condition without a word.
    if (!isSame(await read(keyv, key, signal), over)) return false
    const put = async (condition: Readonly<Record<string, string>>): Promise<true> => {
      const headers = { 'content-type': 'application/vnd.ipfs.ipns-record', ...condition }
      await store.call({ method: 'PUT', key, body, headers, signal })
      return true
    }
    const condition = compares ? conditionOf(over) : {}
    try {
      return await put(condition)
    } catch (error) {
      const status = statusOf(error)
      // Another record is there, or none, or another instance writes at this moment.
      if (status === 412 || status === 409 || isMissing(error)) return false
      if (!compares || (status !== 400 && status !== 501)) throw error
      await put({})
      compares = false
      return true
    }
  }

  return { read, replace }
}

function conditionOf(over: StoredRecord | undefined): Readonly<Record<string, string>> {
  if (over === undefined) return { 'if-none-match': '*' }
  return over.tag === undefined ? {} : { 'if-match': over.tag }
}
