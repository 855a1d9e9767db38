// For the soak: clients that read, leave in the middle and upload, and hold every byte against what it has to be.
import { createHash, randomBytes, randomInt } from 'node:crypto'
import { open } from 'node:fs/promises'
import { Agent, type IncomingMessage, request } from 'node:http'
import { join } from 'node:path'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { codec, hash } from '../../src/core/cid.ts'
import type { SoakFile } from './world.ts'

export type Tally = {
  /** By kind of request and what became of it: a status, `cut` or `left`. */
  readonly outcomes: Map<string, number>
  /** What a client may never see, a line each. */
  readonly wrong: string[]
  /** Reads of a file that one upstream or this gateway has, and those that got it not. */
  reads: number
  readonly unanswered: string[]
  /** Uploads that were acknowledged. */
  readonly uploads: SoakFile[]
}

type Answer = {
  /** 0: no answer at all. */
  readonly status: number
  readonly headers: IncomingMessage['headers']
  readonly sha256: string
  readonly bytes: number
  readonly isWhole: boolean
  /** Of a problem: what it says. */
  readonly problem: string
}
type Asking = {
  readonly method?: string
  readonly headers?: Record<string, string>
  readonly body?: Buffer
  /** The client leaves when it has so many bytes. */
  readonly leaveAfter?: number
}

export function createClients(options: {
  readonly url: () => string
  readonly folder: string
  readonly files: readonly SoakFile[]
}) {
  const agent = new Agent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY })
  const tally: Tally = { outcomes: new Map(), wrong: [], reads: 0, unanswered: [], uploads: [] }
  let isOver = false

  const count = (kind: string, outcome: string | number): void => {
    const key = `${kind} ${outcome}`
    tally.outcomes.set(key, (tally.outcomes.get(key) ?? 0) + 1)
  }

  function ask(path: string, { method = 'GET', headers = {}, body, leaveAfter }: Asking = {}): Promise<Answer> {
    return new Promise((resolve) => {
      const sent = request(options.url() + path, { method, headers, agent, timeout: 60_000 })
      const none = { status: 0, headers: {}, sha256: '', bytes: 0, isWhole: false, problem: '' }
      sent.on('timeout', () => sent.destroy(new Error('nothing came for a minute')))
      sent.on('error', (error) => resolve({ ...none, problem: String(error) }))
      sent.on('response', (response) => {
        const hash = createHash('sha256')
        let bytes = 0
        let problem = ''
        response.on('data', (piece: Buffer) => {
          hash.update(piece)
          bytes += piece.length
          if ((response.statusCode ?? 0) >= 400 && problem.length < 4000) problem += piece.toString()
          if (leaveAfter !== undefined && bytes >= leaveAfter) sent.destroy()
        })
        response.on('error', () => {})
        response.on('close', () => {
          const { statusCode: status = 0, headers, complete: isWhole } = response
          resolve({ status, headers, sha256: hash.digest('hex'), bytes, isWhole, problem })
        })
      })
      sent.end(body)
    })
  }

  /** Small ones are asked for most; a few of them nearly all the time. */
  function someFile(): SoakFile {
    const { files } = options
    const among = randomInt(10) < 4 ? 50 : files.length
    return files[randomInt(among)] as SoakFile
  }

  function note(kind: string, answer: Answer, expected: { path: string; status: number; sha256: string }): void {
    count(kind, answer.status !== expected.status || answer.isWhole ? answer.status : 'cut')
    tally.reads++
    const began = `${new Date().toISOString()} ${kind} ${expected.path}`
    if (answer.status !== expected.status) tally.unanswered.push(`${began}: ${answer.status} ${answer.problem.trim()}`)
    else if (!answer.isWhole) tally.unanswered.push(`${began}: cut after ${answer.bytes} bytes`)
    if (answer.status !== expected.status || !answer.isWhole || answer.sha256 === expected.sha256) return
    tally.wrong.push(`${began}: ${answer.bytes} bytes that are wrong: ${JSON.stringify(answer.headers)}`)
  }

  const path = ({ cid }: SoakFile): string => `/ipfs/${cid}`
  const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')

  async function read(file: SoakFile, kind = 'read'): Promise<void> {
    note(kind, await ask(path(file)), { path: path(file), status: 200, sha256: file.sha256 })
  }

  async function readPart(file: SoakFile): Promise<void> {
    const from = randomInt(file.bytes)
    const to = Math.min(file.bytes - 1, from + randomInt(100_000))
    const answer = await ask(path(file), { headers: { range: `bytes=${from}-${to}` } })
    const part = Buffer.alloc(to - from + 1)
    const opened = await open(join(options.folder, file.cid))
    try {
      await opened.read(part, 0, part.length, from)
    } finally {
      await opened.close()
    }
    note('range', answer, { path: `${path(file)} ${from}-${to}`, status: 206, sha256: sha256(part) })
  }

  async function readAgain(file: SoakFile): Promise<void> {
    const first = await ask(path(file), { method: 'HEAD' })
    count('head', first.status)
    const { etag } = first.headers
    if (first.status !== 200 || etag === undefined) return
    const again = await ask(path(file), { headers: { 'if-none-match': etag } })
    if (again.status === 200) note('again', again, { path: path(file), status: 200, sha256: file.sha256 })
    else count('again', again.status)
  }

  async function readAbsent(): Promise<void> {
    const cid = CID.createV1(codec.raw, create(hash.sha256, randomBytes(32)))
    const { status } = await ask(`/ipfs/${cid}`)
    count('absent', status)
    if (status === 200) tally.wrong.push(`/ipfs/${cid}: 200 for what does not exist`)
  }

  async function upload(): Promise<void> {
    const body = randomBytes(1 + randomInt(randomInt(20) === 0 ? 3_000_000 : 5000))
    const boundary = randomBytes(16).toString('hex')
    const head = `--${boundary}\r\ncontent-disposition: form-data; name="data"; filename="a"\r\n\r\n`
    const form = Buffer.concat([Buffer.from(head), body, Buffer.from(`\r\n--${boundary}--\r\n`)])
    const cid = await uploaded(form, boundary)
    if (cid === undefined) return
    const file = { cid, bytes: body.length, sha256: sha256(body) }
    tally.uploads.push(file)
    const answer = await ask(path(file))
    note('read-back', answer, { path: path(file), status: 200, sha256: file.sha256 })
  }

  async function uploaded(form: Buffer, boundary: string): Promise<string | undefined> {
    try {
      const answer = await fetch(`${options.url()}/add`, {
        method: 'POST',
        headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
        body: new Uint8Array(form),
        signal: AbortSignal.timeout(60_000),
      })
      const text = await answer.text()
      count('upload', answer.status)
      return answer.status === 200 ? /\/ipfs\/(\w+)/.exec(text)?.[1] : undefined
    } catch {
      count('upload', 0)
      return undefined
    }
  }

  async function leave(file: SoakFile): Promise<void> {
    await ask(path(file), { leaveAfter: randomInt(file.bytes) })
    count('leave', 'left')
  }

  async function act(): Promise<void> {
    const roll = randomInt(100)
    const file = someFile()
    if (roll < 65) return read(file)
    if (roll < 80) return readPart(file)
    if (roll < 86) return readAgain(file)
    if (roll < 90) return leave(file)
    if (roll < 92) return readAbsent()
    if (roll < 96) return upload()
    const { uploads } = tally
    const earlier = uploads[randomInt(Math.max(1, uploads.length))]
    if (earlier) await read(earlier, 'uploaded')
  }

  return {
    tally,
    /** One client after another, with a pause in between, until `stop`. */
    async run(pauseMs: number): Promise<void> {
      while (!isOver) {
        await act()
        await new Promise((resolve) => setTimeout(resolve, randomInt(2 * pauseMs + 1)))
      }
    },
    stop() {
      isOver = true
    },
    /** Every acknowledged upload, once more. Gives those that are not there. */
    async missing(): Promise<string[]> {
      const lost: string[] = []
      for (const file of tally.uploads) {
        const answer = await ask(path(file))
        if (answer.status !== 200 || answer.sha256 !== file.sha256) lost.push(`${path(file)}: ${answer.status}`)
      }
      agent.destroy()
      return lost
    },
  }
}
