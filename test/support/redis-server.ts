// As much of Redis as a store of blocks and a tally need, over RESP2, binary-safe, with its faults on command.
import { createServer, type Socket } from 'node:net'
import { listen, type StoreServer } from './store-server.ts'

export type RedisFaults = {
  slowMs?: number
  /** Every command on keys gets this error: `OOM command not allowed …`. */
  error?: string
  losesWrites?: boolean
  /** Scripts are not allowed to this user. */
  noScripts?: boolean
  /** AUTH must have been sent with this. */
  password?: string
  /** It has as many clients as it takes, and says so to any other. */
  full?: boolean
}

export type RedisServer = StoreServer & {
  readonly url: string
  readonly values: Map<string, { readonly value: Buffer; readonly expires?: number }>
  readonly commands: string[]
  /** What a client said of itself: the words behind CLIENT. */
  readonly clients: string[]
  /** Commands that came and are answered later. */
  readonly waiting: number
  faults: RedisFaults
}

const simple = (text: string): Buffer => Buffer.from(`+${text}\r\n`)
const problem = (text: string): Buffer => Buffer.from(`-${text}\r\n`)
const integer = (value: number): Buffer => Buffer.from(`:${value}\r\n`)
const nothing = Buffer.from('$-1\r\n')
const bulk = (value: Buffer): Buffer =>
  Buffer.concat([Buffer.from(`$${value.byteLength}\r\n`), value, Buffer.from('\r\n')])

export async function startRedisServer(): Promise<RedisServer> {
  const values: RedisServer['values'] = new Map()
  const commands: string[] = []
  const clients: string[] = []
  let waiting = 0

  const run = ([name, ...args]: Buffer[], login: { done: boolean }): Buffer => {
    const { faults } = self
    const command = String(name).toUpperCase()
    const key = String(args[0])
    commands.push(command)
    if (command === 'CLIENT') clients.push(args.map(String).join(' '))
    if (command === 'AUTH') {
      login.done = String(args.at(-1)) === faults.password
      return login.done ? simple('OK') : problem('WRONGPASS invalid username-password pair or user is disabled.')
    }
    if (command === 'HELLO') return problem("ERR unknown command 'HELLO'")
    if (faults.password !== undefined && !login.done) return problem('NOAUTH Authentication required.')
    if (command === 'CLIENT' || command === 'SELECT') return simple('OK')
    if (command === 'PING') return simple('PONG')
    if (faults.error !== undefined) return problem(faults.error)
    // The one script there is: it compares what is under the key and writes, in one step (redis.ts).
    if (command === 'EVAL') {
      if (faults.noScripts) return problem("NOPERM User default has no permissions to run the 'eval' command")
      const [, , at, over, bytes, keepMs] = args
      const was = run([Buffer.from('GET'), at ?? nothing], login)
      if (Buffer.compare(was, over?.byteLength ? bulk(over) : nothing) !== 0) return integer(0)
      run(
        ['SET', at, bytes, 'PX', keepMs].map((arg) => Buffer.from(arg ?? '')),
        login,
      )
      return integer(1)
    }
    const held = values.get(key)
    const there = held && (held.expires === undefined || held.expires > Date.now()) ? held.value : undefined
    if (command === 'GET') return there ? bulk(there) : nothing
    if (command === 'EXISTS') return integer(there ? 1 : 0)
    if (command === 'SET') {
      const expires = String(args[2]).toUpperCase() === 'PX' ? Date.now() + Number(args[3]) : undefined
      if (String(args[4]).toUpperCase() === 'NX' && there) return nothing
      const value = args[1] ?? Buffer.alloc(0)
      if (!faults.losesWrites) values.set(key, expires === undefined ? { value } : { value, expires })
      return simple('OK')
    }
    if (command === 'INCRBY') {
      const value = Number(there ?? 0) + Number(args[1])
      if (!faults.losesWrites) values.set(key, { ...(there && held), value: Buffer.from(String(value)) })
      return integer(value)
    }
    if (command === 'PEXPIRE') {
      if (there && held) values.set(key, { ...held, expires: Date.now() + Number(args[1]) })
      return integer(there ? 1 : 0)
    }
    if (command === 'UNLINK' || command === 'DEL') return integer(values.delete(key) && there ? 1 : 0)
    return problem(`ERR unknown command '${command}'`)
  }

  const answerLater = (socket: Socket, args: Buffer[], login: { done: boolean }, ms: number): void => {
    waiting++
    const answer = () => {
      waiting--
      if (socket.writable) socket.write(run(args, login))
    }
    setTimeout(answer, ms).unref()
  }

  const serve = (socket: Socket): void => {
    if (self.faults.full) return void socket.end(problem('ERR max number of clients reached'))
    const login = { done: false }
    let held: Buffer = Buffer.alloc(0)
    socket.on('data', (chunk: Buffer) => {
      held = held.byteLength === 0 ? chunk : Buffer.concat([held, chunk])
      for (;;) {
        const parsed = parse(held)
        if (!parsed) return
        held = held.subarray(parsed.length)
        if (!self.hears(socket)) continue
        if (self.faults.slowMs === undefined) socket.write(run(parsed.args, login))
        else answerLater(socket, parsed.args, login, self.faults.slowMs)
      }
    })
  }

  const base = await listen(createServer(serve))
  const self: RedisServer = Object.defineProperties(
    {
      url: `redis://127.0.0.1:${base.port}`,
      values,
      commands,
      clients,
      get waiting() {
        return waiting
      },
      faults: {},
    },
    Object.getOwnPropertyDescriptors(base),
  ) as RedisServer
  return self
}

/** One command, an array of bulk strings; undefined while it is not all there. */
function parse(bytes: Buffer): { readonly args: Buffer[]; readonly length: number } | undefined {
  let at = 0
  const number = (): number | undefined => {
    const end = bytes.indexOf('\r\n', at)
    if (end < 0) return undefined
    const value = Number(bytes.subarray(at + 1, end).toString())
    at = end + 2
    return value
  }
  const count = number()
  if (count === undefined) return undefined
  const args: Buffer[] = []
  while (args.length < count) {
    const length = number()
    if (length === undefined || bytes.byteLength < at + length + 2) return undefined
    args.push(Buffer.from(bytes.subarray(at, at + length)))
    at += length + 2
  }
  return { args, length: at }
}
