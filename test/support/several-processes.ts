// `cidgate serve` with several processes, as a user starts it, and connections of which it is known which process accepted them.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { Agent, type IncomingHttpHeaders, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { boundary, multipart } from './adding.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))

export type Told = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: Buffer }

/** One connection, which one process accepted. */
export interface Line {
  get(path: string, headers?: Record<string, string>): Promise<Told>
  send(path: string, body: Uint8Array | string, headers?: Record<string, string>, method?: string): Promise<Told>
  /** Uploads a file. Resolves to its path. */
  add(bytes: Uint8Array | string): Promise<string>
  /** An upload that is under way until it is finished. */
  beginAdd(bytes: Uint8Array | string): { finish(): Promise<Told> }
  close(): void
}

export interface Processes {
  readonly url: string
  readonly admin: string
  readonly folder: string
  readonly pid: number
  /** By process: the owner first. */
  lines(size?: number): Promise<readonly Line[]>
  /** The sum of its series, or of those of which the labels say so. */
  metric(name: string, labels?: string): Promise<number>
  said(): string
  /** A new configuration, which is followed when this resolves. */
  reload(more: string, how?: How & { readonly outcome?: 'config.reloaded' | 'config.refused' }): Promise<void>
  signal(signal: NodeJS.Signals): void
  readonly exitCode: number | null
  /** With the same folder and configuration, after it was killed. */
  startAgain(): Promise<void>
  /** The pid of a worker, as the log tells it last. */
  workerPid(index: number): number
  /** Until all of them answer. */
  ready(size?: number): Promise<void>
  close(): Promise<void>
}

type How = {
  readonly workers?: number
  /** In their folder. */
  readonly data?: string
  /** A path in their folder. Absent: a port. */
  readonly socket?: string | undefined
}

/** Two, of one gateway. */
export async function startProcesses(more: string): Promise<Processes> {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-processes-'))
  const file = join(folder, 'cidgate.yaml')
  const addressOf = (socket: string): string => `unix:${join(folder, socket)}`
  const write = (rest: string, { workers = 2, data = 'data', socket }: How = {}) =>
    writeFile(
      file,
      `data: ${join(folder, data)}
listen: ${socket ? addressOf(socket) : '127.0.0.1:0'}
admin: 127.0.0.1:0
workers: ${workers}
log: { level: info }
${rest}`,
    )
  await write(more)
  const args = ['bin/cidgate.mjs', 'serve', '--config', file]
  const line = /^cidgate \(pid \d+\): ((?:http|unix):\S+) \(admin: (http:\S+)\)/m
  let said = { out: '', err: '' }
  let [url, admin] = ['', '']
  let child: ChildProcess

  async function start(): Promise<void> {
    const own = { out: '', err: '' }
    said = own
    child = spawn(process.execPath, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] })
    child.stdout?.on('data', (chunk) => (own.out += chunk))
    child.stderr?.on('data', (chunk) => (own.err += chunk))
    await until(
      () => line.test(own.out) || child.exitCode !== null,
      () => own.err,
    )
    ;[, url = '', admin = ''] = line.exec(own.out) ?? []
    assert.ok(url, own.err)
    await ready()
  }

  const metric = async (name: string, labels = ''): Promise<number> => {
    const text = await (await fetch(`${admin}/metrics`)).text()
    return text
      .split('\n')
      .filter((one) => one === name || one.startsWith(`${name} `) || one.startsWith(`${name}{`))
      .filter((one) => one.includes(labels))
      .reduce((sum, one) => sum + Number(one.slice(one.lastIndexOf(' ') + 1)), 0)
  }
  const ready = (wanted = 2) =>
    until(
      async () => (await metric('cidgate_processes')) === wanted,
      () => `no ${wanted} processes: ${said.err}`,
    )
  await start()
  const open: Line[] = []

  /** A connection to each process, by what its ids have alike: the owner first. */
  async function meet(wanted: number): Promise<ReadonlyMap<string, Line>> {
    // The owner alone answers what is no content, and says so with an id of its own.
    const first = openLine(url)
    const owner = await idOf(first, '/openapi.json')
    first.close()
    const found = new Map<string, Line>()
    for (let tries = 0; found.size < wanted; tries++) {
      assert.ok(tries < 500, `connections of ${found.size} processes: ${said.err}`)
      // Many at once: one process alone would take one after another.
      const some = Array.from({ length: 8 }, () => openLine(url))
      for (const [at, id] of (await Promise.all(some.map((one) => idOf(one, anywhere)))).entries()) {
        const one = some[at] as Line
        if (found.has(id)) one.close()
        else found.set(id, one)
      }
    }
    return new Map([...found].sort(([one], [other]) => Number(other === owner) - Number(one === owner)))
  }

  return {
    get url() {
      return url
    },
    get admin() {
      return admin
    },
    folder,
    get pid() {
      return child.pid ?? 0
    },
    startAgain: start,
    metric,
    ready,
    said: () => said.err,
    signal: (signal) => void child.kill(signal),
    get exitCode() {
      return child.exitCode
    },
    workerPid(index) {
      const found = [...said.err.matchAll(/"event":"worker.ready","worker":(\d+),"pid":(\d+)/g)]
      return Number(found.findLast(([, worker]) => Number(worker) === index)?.[2])
    },
    async lines(wanted = 2) {
      for (const one of open.splice(0)) one.close()
      for (;;) {
        const found = await meet(wanted)
        // A process that has connections beyond its share looks four times a second, and ends some behind their answers.
        await sleep(600)
        const ids = await Promise.all([...found.values()].map((line) => idOf(line, anywhere)))
        open.push(...found.values())
        if ([...found.keys()].every((id, index) => id === ids[index])) return [...found.values()]
        for (const one of open.splice(0)) one.close()
      }
    },
    async reload(rest, { outcome = 'config.reloaded', ...how } = {}) {
      const before = said.err.split(outcome).length
      await write(rest, how)
      child.kill('SIGHUP')
      await until(
        () => said.err.split(outcome).length > before,
        () => said.err,
      )
      if (how.socket) url = addressOf(how.socket)
    },
    async close() {
      for (const one of open) one.close()
      if (child.exitCode === null && child.signalCode === null) {
        child.kill('SIGKILL')
        await new Promise((resolve) => child.once('exit', resolve))
      }
      await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 })
    },
  }
}

/** Each process answers it by itself. */
const anywhere = '/ipfs/bafkqaaa?format=raw'

/** What the ids of one process have alike. */
async function idOf(line: Line, path: string): Promise<string> {
  const { headers } = await line.get(path)
  return String(headers['x-request-id']).split('-').slice(0, -1).join('-')
}

export const formType = { 'Content-Type': `multipart/form-data; boundary=${boundary}` }
export const formOf = (bytes: Uint8Array | string): Buffer =>
  multipart([{ fileName: 'f', body: Buffer.from(bytes as Uint8Array) }])

const placeOf = (url: string): { readonly socketPath?: string; readonly host?: string; readonly port?: string } => {
  if (url.startsWith('unix:')) return { socketPath: url.slice('unix:'.length) }
  const { hostname, port } = new URL(url)
  return { host: hostname, port }
}

export function openLine(url: string): Line {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const begin = (path: string, method: string, headers: Record<string, string>) => {
    const asked = request({ ...placeOf(url), path, agent, method, headers })
    const answer = new Promise<Told>((resolve, reject) => {
      asked.once('response', (answer) => {
        const pieces: Buffer[] = []
        answer.on('data', (piece) => pieces.push(piece))
        answer.once('error', reject)
        answer.once('end', () =>
          resolve({ status: answer.statusCode ?? 0, headers: answer.headers, body: Buffer.concat(pieces) }),
        )
      })
      asked.once('error', reject)
    })
    return { asked, answer }
  }
  const ask = (path: string, method: string, headers: Record<string, string>, body?: Uint8Array | string) => {
    const { asked, answer } = begin(path, method, headers)
    asked.end(body)
    return answer
  }
  return {
    get: (path, headers = {}) => ask(path, 'GET', headers),
    send: (path, body, headers = {}, method = 'POST') => ask(path, method, headers, body),
    async add(bytes) {
      const { status, body } = await ask('/add', 'POST', formType, formOf(bytes))
      assert.equal(status, 200, body.toString())
      return (JSON.parse(body.toString()) as { cids: string[] }).cids[0] as string
    },
    beginAdd(bytes) {
      const form = formOf(bytes)
      const { asked, answer } = begin('/add', 'POST', { ...formType, 'Content-Length': String(form.length) })
      // A reset before the last bytes are sent is seen by `finish`.
      answer.catch(() => {})
      asked.write(form.subarray(0, -100))
      return {
        finish() {
          asked.end(form.subarray(-100))
          return answer
        },
      }
    },
    close: () => agent.destroy(),
  }
}

export async function until(holds: () => boolean | Promise<boolean>, otherwise: () => string): Promise<void> {
  for (let tries = 0; !(await holds()); tries++) {
    assert.ok(tries < 600, otherwise())
    await sleep(50)
  }
}
