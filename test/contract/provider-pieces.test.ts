// An upload in pieces, against a service that breaks off wherever it can: no byte is sent again that has come, and none is
// left out.
import assert from 'node:assert/strict'
import { afterEach, before, beforeEach, describe, test } from 'node:test'
import type { Provider } from '../../backends/pinning/contract.ts'
import { providerKinds } from '../../backends/pinning/index.ts'
import { type Clock, systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { type MemoryUpload, memoryUpload, providerFailure } from '../../src/testing/provider.ts'
import { noise } from '../support/fixtures.ts'
import { type Call, pinataApi, type StandIn, startStandIn, token } from '../support/providers.ts'

const hurried: Clock = { ...systemClock, sleep: (ms, own) => systemClock.sleep(ms / 50, own) }
const pieceBytes = 1_000_000
const signal = () => new AbortController().signal

let upload: MemoryUpload
let service: StandIn
let provider: Provider
before(async () => {
  upload = await memoryUpload(noise(3_300_000, 5))
})
beforeEach(async () => {
  service = await startStandIn(pinataApi)
  const kind = providerKinds['pinata']
  assert.ok(kind)
  const settings = {
    uploadsUrl: service.url,
    apiUrl: service.url,
    token,
    resumableAbove: 1,
    chunkBytes: pieceBytes,
    idleTimeout: '1500ms',
  }
  const context = {
    name: 'one',
    userAgent: 'cidgate/test',
    data: '/nonexistent',
    folders: processFolders,
    log: silentLog,
    clock: hurried,
  }
  provider = kind.create(kind.options.parse(settings), context)
})
afterEach(async () => {
  await provider.close()
  await service.close()
})

const patches = (): Call[] => service.calls.filter(({ method }) => method === 'PATCH')
const begun = (): number => service.calls.filter(({ method }) => method === 'POST').length
const sentBytes = (): number => patches().reduce((sum, { body }) => sum + body.length, 0)
const isTheUpload = async () => assert.equal(String(await provider.pin(upload, signal())), String(upload.cid))

/** Breaks off behind so many bytes of the pieces with these numbers. */
function cutPieces(cuts: Readonly<Record<number, number>>): void {
  let count = 0
  service.cutAfter = ({ method }) => (method === 'PATCH' ? cuts[count++] : undefined)
}

describe('resumable upload in pieces', () => {
  for (const after of [1, 300_000, 999_999])
    test(`cut after ${after} bytes of the second piece → resumes`, async () => {
      cutPieces({ 1: after })
      await isTheUpload()
      assert.equal(begun(), 1)
      assert.equal(sentBytes(), upload.carBytes)
      assert.equal(Number(patches()[2]?.headers['upload-offset']), pieceBytes + after)
    })

  test('response lost, also the last → resumes', async () => {
    const last = Math.ceil(upload.carBytes / pieceBytes) - 1
    service.script = (call) => (call.method === 'PATCH' && [1, last].includes(patches().length - 1) ? 'cut' : undefined)
    // The piece came whole, and what follows from it is in the list: there is no answer any more that could name the CID.
    service.pins.set(String(upload.cid), 'id-1')
    await isTheUpload()
    assert.equal(sentBytes(), upload.carBytes)
  })

  test('500, 502 with HTML, 409 or silence → resumes', async () => {
    const answers = [{ status: 500 }, { status: 502, text: '<html>' }, { status: 409 }, 'silent'] as const
    const given = [...answers]
    const refused: Call[] = []
    service.script = (call) => {
      if (call.method !== 'PATCH' || refused.includes(call)) return undefined
      const answer = given.shift()
      if (!answer) return undefined
      // What was refused did not come.
      service.calls.splice(service.calls.indexOf(call), 1)
      refused.push(call)
      return answer
    }
    await isTheUpload()
    assert.equal(refused.length, answers.length)
    assert.equal(begun(), 1)
    assert.equal(sentBytes(), upload.carBytes)
  })

  test('failed attempt → next one resumes', async () => {
    service.script = ({ method }) => (method === 'HEAD' ? { status: 503 } : undefined)
    cutPieces({ 2: 500_000 })
    const { facts } = await providerFailure(provider.pin(upload, signal()), [token])
    assert.equal(facts['class'], 'transient')
    service.script = undefined
    service.cutAfter = undefined
    await isTheUpload()
    assert.equal(begun(), 1)
    assert.equal(sentBytes(), upload.carBytes)
  })

  test('Retry-After → resumes after that time', async () => {
    let isBusy = true
    service.script = ({ method }) =>
      method === 'PATCH' && isBusy && patches().length === 2
        ? { status: 429, headers: { 'retry-after': '7' } }
        : undefined
    assert.equal((await providerFailure(provider.pin(upload, signal()))).retryAfterMs, 7000)
    isBusy = false
    await isTheUpload()
    assert.equal(begun(), 1)
  })

  test('service took fewer bytes than sent → resumes from its offset', async () => {
    let isShort = true
    service.script = (call) => {
      if (call.method !== 'PATCH' || !isShort) return undefined
      isShort = false
      service.calls.splice(service.calls.indexOf(call), 1, { ...call, body: call.body.subarray(0, 400_000) })
      return { status: 204, headers: { 'upload-offset': '400000' } }
    }
    await isTheUpload()
    assert.equal(sentBytes(), upload.carBytes)
  })

  test('service forgets complete uploads → looked up by CID', async () => {
    const last = Math.ceil(upload.carBytes / pieceBytes)
    service.script = (call) => {
      if (call.method === 'PATCH' && patches().length === last) return 'cut'
      return call.method === 'HEAD' ? { status: 404 } : undefined
    }
    service.pins.set(String(upload.cid), 'id-1')
    await isTheUpload()
    assert.equal(begun(), 1)
  })

  test('service forgot the upload → starts again', async () => {
    cutPieces({ 1: 500_000 })
    let isGone = true
    service.script = ({ method }) => {
      if (method !== 'HEAD' || !isGone) return undefined
      isGone = false
      return { status: 404 }
    }
    await isTheUpload()
    assert.equal(begun(), 2)
  })

  test('no progress → fails after a bounded number of attempts', async () => {
    service.cutAfter = ({ method }) => (method === 'PATCH' ? 0 : undefined)
    await providerFailure(provider.pin(upload, signal()), [token])
    assert.ok(patches().length <= 5, `${patches().length} pieces`)
  })

  test('abort within a piece → stops at once', async () => {
    const controller = new AbortController()
    const reason = new Error('enough')
    service.script = ({ method }) => {
      if (method === 'PATCH') controller.abort(reason)
      return method === 'PATCH' ? 'silent' : undefined
    }
    await assert.rejects(provider.pin(upload, controller.signal), (error) => error === reason)
  })
})
