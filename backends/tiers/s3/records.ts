// Records as objects in the blocks' bucket. S3 compares and writes in one step: the writer names the ETag that it read.
// With a store that does not know this, the record is read, then written.
import type Keyv from 'keyv'
import type { StoredRecord } from '../contract.ts'
import { isSame, type RecordSteps } from '../keyv-records.ts'
import { bytesOf, isMissing, statusOf } from './client.ts'
import type { S3Store } from './store.ts'

const mostBytes = 64 * 1024

export function s3Records(): RecordSteps {
  let compares = true
  const storeOf = ({ store }: Keyv): S3Store => store as S3Store

  async function read(keyv: Keyv, key: string, abortSignal: AbortSignal): Promise<StoredRecord | undefined> {
    const store = storeOf(keyv)
    const { sdk, client } = await store.load()
    const answer = await store.orMissing(() => client.send(new sdk.GetObjectCommand(store.at(key)), { abortSignal }))
    if (!answer?.Body) return undefined
    const bytes = bytesOf(answer, mostBytes)
    // What is too large for a record is none, and is written over like one that proves nothing.
    return { bytes: bytes ?? new Uint8Array(), tag: answer.ETag }
  }

  async function replace(...[keyv, key, bytes, { over }, abortSignal]: Parameters<RecordSteps['replace']>) {
    const store = storeOf(keyv)
    // Some stores pass over a condition without a word.
    if (!isSame(await read(keyv, key, abortSignal), over)) return false
    const { sdk, client } = await store.load()
    const put = async (condition: object): Promise<true> => {
      const object = { ...store.at(key), Body: bytes, ContentLength: bytes.byteLength, ContentType: type }
      await client.send(new sdk.PutObjectCommand({ ...object, ...condition }), { abortSignal })
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

const type = 'application/vnd.ipfs.ipns-record'

function conditionOf(over: StoredRecord | undefined): object {
  if (over === undefined) return { IfNoneMatch: '*' }
  return over.tag === undefined ? {} : { IfMatch: over.tag }
}
