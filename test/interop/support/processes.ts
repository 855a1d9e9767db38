// Starts a real server for a test, waits until it says or shows that it is there, and stops exactly that process again.
// A server that is not installed is a failed test with the way to install it, never a skipped one.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export type Running = {
  readonly pid: number
  readonly output: () => string
  /** It keeps its sockets and answers nothing any more. */
  pause(): void
  stop(): Promise<void>
}

export type Program = {
  readonly command: string
  readonly args: readonly string[]
  readonly env?: Readonly<Record<string, string>>
  /** Resolves as soon as this is true; looked at every 50 ms and at each line of output. */
  readonly isReady: (output: string) => boolean | Promise<boolean>
  readonly withinMs?: number
}

export function require(command: string): void {
  const found = spawnSync('sh', ['-c', `command -v ${command}`])
  if (found.status !== 0)
    throw new Error(`${command} is not installed: run .ci/install-peers (and put its folder in PATH)`)
}

export async function run(program: Program): Promise<Running> {
  require(program.command)
  const child = spawn(program.command, program.args, {
    env: { ...process.env, ...program.env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let output = ''
  const keep = (chunk: Buffer) => {
    output = (output + chunk.toString()).slice(-200_000)
  }
  child.stdout.on('data', keep)
  child.stderr.on('data', keep)
  const gone = new Promise<never>((_resolve, reject) => {
    child.once('error', reject)
    child.once('exit', (code) => reject(new Error(`${program.command} ended with ${code}\n${output}`)))
  })
  gone.catch(() => {})
  const until = Date.now() + (program.withinMs ?? 30_000)
  const ready = async () => {
    while (!(await program.isReady(output))) {
      if (Date.now() > until) throw new Error(`${program.command} did not become ready\n${output}`)
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }
  try {
    await Promise.race([ready(), gone])
  } catch (error) {
    await stop(child)
    throw error
  }
  return {
    pid: child.pid ?? 0,
    output: () => output,
    pause: () => pause(child),
    stop: () => stop(child),
  }
}

/** Returns when it stands: a signal is on its way for a while, and answers may overtake it. */
function pause(child: ChildProcess): void {
  child.kill('SIGSTOP')
  for (let left = 200; left > 0; left--)
    if (
      spawnSync('ps', ['-o', 'stat=', '-p', String(child.pid)])
        .stdout.toString()
        .startsWith('T')
    )
      return
  throw new Error('the process did not stop')
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  child.kill('SIGTERM')
  child.kill('SIGCONT')
  const hard = setTimeout(() => child.kill('SIGKILL'), 10_000)
  await ended
  clearTimeout(hard)
}

/** Runs to its end and answers what it printed; throws with all of it when it fails. */
export function runOnce(
  command: string,
  args: readonly string[],
  options: { env?: Record<string, string>; input?: Uint8Array } = {},
): string {
  require(command)
  const { status, stdout, stderr } = spawnSync(command, args, {
    env: { ...process.env, ...options.env },
    input: options.input,
    maxBuffer: 256 * 1024 * 1024,
  })
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${status}\n${stdout}\n${stderr}`)
  return stdout.toString()
}

/** A free port: for programs that cannot be told to take any. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })
}

export async function tempFolder(): Promise<{ path: string; remove(): Promise<void> }> {
  const path = await mkdtemp(join(tmpdir(), 'cidgate-interop-'))
  return { path, remove: () => rm(path, { recursive: true, force: true }) }
}
