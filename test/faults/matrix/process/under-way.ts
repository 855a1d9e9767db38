// Requests that the gateway has begun with when something happens to it: its upstream was asked for them, their answer has begun, or half
// of their bytes have come. Each has to end complete.
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { get, type IncomingMessage, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { boundary, multipart } from '../../../support/adding.ts'
import { addFile, type FileFixture, noise } from '../../../support/fixtures.ts'
import type { Fault, ProgrammableUpstream } from '../../../support/upstream.ts'

export type Told = { readonly path: string; readonly body: Uint8Array }

export type InFlightIndex = {
  /** The uploads send the rest. Resolves with what did not end complete, when all of them have ended. */
  goOn(): Promise<readonly string[]>
}

export type UnderWayOptions = {
  readonly url: string
  /** Undefined: there are no reads that need one. */
  readonly upstream: ProgrammableUpstream | undefined
  /** Uploads that were answered with 200. */
  readonly acknowledged: Told[]
}

const ofEach = 2
/** Longer than a gateway with nothing to do takes to end. */
const lastsMs = 800
const steps = 8
let made = 10_000

export async function beginUnderWay({ url, upstream, acknowledged }: UnderWayOptions): Promise<InFlightIndex> {
  const goOn = Promise.withResolvers<void>()
  const begun: Promise<Promise<string[]>[]>[] = []
  for (let count = 0; count < ofEach; count++) begun.push(upload(url, goOn.promise, acknowledged))
  for (let count = 0; upstream && count < ofEach; count++)
    begun.push(waitingRead(url, upstream), begunRead(url, upstream))
  const ends = (await Promise.all(begun)).flat()
  return {
    async goOn() {
      goOn.resolve()
      return (await Promise.all(ends)).flat()
    },
  }
}

const slow = new WeakMap<ProgrammableUpstream, Map<string, Fault>>()

/** A file that the gateway does not have, which its upstream sends in that way. */
async function coldFile(upstream: ProgrammableUpstream, bytes: number, fault: Fault): Promise<FileFixture> {
  const file = await addFile(upstream.blocks, noise(bytes, made++))
  const faults = slow.get(upstream) ?? new Map<string, Fault>()
  slow.set(upstream, faults.set(String(file.cid), fault))
  upstream.fault ??= ({ url: asked }) => faults.get(/^\/ipfs\/(\w+)/.exec(asked)?.[1] ?? '')
  return file
}

async function waitingRead(url: string, upstream: ProgrammableUpstream): Promise<Promise<string[]>[]> {
  const file = await coldFile(upstream, 200_000, { kind: 'slowFirstByte', ms: lastsMs })
  const over = read(url, file)
  while (!upstream.asked.some((seen) => seen.url.includes(String(file.cid)))) await sleep(5)
  return [over.complete]
}

async function begunRead(url: string, upstream: ProgrammableUpstream): Promise<Promise<string[]>[]> {
  const bytes = 2_500_000
  const file = await coldFile(upstream, bytes, { kind: 'pace', bytesPerSecond: (bytes * 1000) / lastsMs })
  const over = read(url, file)
  await over.begun
  return [over.complete]
}

function read(url: string, { cid, bytes }: FileFixture) {
  const [begun, complete] = [Promise.withResolvers<void>(), Promise.withResolvers<string[]>()]
  const fail = (how: string) => {
    begun.resolve()
    complete.resolve([`a read that was under way ${how}`])
  }
  const asked = get(`${url}/ipfs/${cid}`, { agent: false }, (response) => {
    const pieces: Buffer[] = []
    response.on('data', (piece: Buffer) => {
      pieces.push(piece)
      begun.resolve()
    })
    response.on('error', () => fail('was cut'))
    response.on('end', () => {
      if (response.statusCode !== 200) fail(`was answered ${response.statusCode}`)
      else if (!Buffer.concat(pieces).equals(bytes)) fail('ended with other bytes')
      else complete.resolve([])
    })
  })
  asked.on('error', () => fail('was reset'))
  return { begun: begun.promise, complete: complete.promise }
}

/** The gateway said that it wants the body, and half of that is out; the rest comes bit by bit. */
async function upload(url: string, goesOn: Promise<void>, acknowledged: Told[]): Promise<Promise<string[]>[]> {
  const content = randomBytes(1_000_000)
  const body = multipart([{ fileName: 'a', body: content }])
  const asked = request(`${url}/add`, {
    method: 'POST',
    agent: false,
    headers: {
      'Content-Type': `multipart/form-data; boundary=${boundary}`,
      'Content-Length': body.byteLength,
      Expect: '100-continue',
    },
  })
  const over = Promise.withResolvers<string[]>()
  const fail = (how: string) => over.resolve([`an upload that was under way ${how}`])
  asked.on('error', () => fail('was cut'))
  asked.on('response', (response: IncomingMessage) => {
    const pieces: Buffer[] = []
    response.on('data', (piece: Buffer) => pieces.push(piece))
    response.on('error', () => fail('was cut'))
    response.on('end', () => {
      if (response.statusCode !== 200) return fail(`was answered ${response.statusCode}`)
      const { cids } = JSON.parse(Buffer.concat(pieces).toString()) as { cids: [string] }
      acknowledged.push({ path: cids[0], body: content })
      over.resolve([])
    })
  })
  asked.flushHeaders()
  await Promise.race([once(asked, 'continue').catch(() => {}), over.promise])
  const half = body.byteLength >> 1
  await new Promise((resolve) => asked.write(body.subarray(0, half), resolve))
  void goesOn.then(async () => {
    const bytes = Math.ceil((body.byteLength - half) / steps)
    for (let at = half; at < body.byteLength; at += bytes) {
      asked.write(body.subarray(at, at + bytes))
      await sleep(lastsMs / steps)
    }
    asked.end()
  })
  return [over.promise]
}
