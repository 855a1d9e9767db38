// A gateway as a person or a supervisor starts it, and the process that they know of it.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

export const root = fileURLToPath(new URL('../../', import.meta.url))
const launcher = 'bin/cidgate.mjs'
/** What comes after it believes that it runs on an old Node; what that starts does not. */
export const asOldNode = [
  '--import',
  `data:text/javascript,Object.defineProperty(process,'versions',{value:{...process.versions,node:'20.1.0'}})`,
]

export type Way = { readonly name: string; readonly command: string; readonly args: string[] }
export const byNode: Way = { name: 'node bin/cidgate.mjs serve', command: process.execPath, args: [launcher, 'serve'] }
export const byOldNode: Way = { ...byNode, name: 'an old Node', args: [...asOldNode, launcher, 'serve'] }
export const byNpm: Way = { name: 'npm start', command: 'npm', args: ['start', '--silent', '--'] }
export const byNpx: Way = { name: 'npx cidgate serve', command: 'npx', args: ['cidgate', 'serve'] }

export type Launched = {
  /** The process that was started. */
  readonly child: ChildProcess
  readonly said: { readonly out: string; readonly err: string }
  readonly url: string
  /** The gateway itself. */
  readonly pid: number
}

/** `started`: the pids, which the caller kills in the end. */
export async function launch(
  { command, args }: Way,
  {
    config,
    env = process.env,
    started,
  }: { readonly config: string; readonly env?: NodeJS.ProcessEnv; readonly started: number[] },
): Promise<Launched> {
  const child = spawn(command, [...args, '--config', config], { cwd: root, env, stdio: ['ignore', 'pipe', 'pipe'] })
  if (child.pid) started.push(child.pid)
  const said = { out: '', err: '' }
  child.stdout.on('data', (chunk) => {
    said.out += chunk
  })
  child.stderr.on('data', (chunk) => {
    said.err += chunk
  })
  const line = /^cidgate \(pid (\d+)\): (http:\S+)/m
  await until(() => line.test(said.out) || child.exitCode !== null, 'it does not start')
  const [, pid, url] = line.exec(said.out) ?? []
  assert.ok(url && pid, said.err)
  started.push(Number(pid))
  return { child, said, url, pid: Number(pid) }
}

export function kill(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch {
    // It is gone already.
  }
}

export async function answers(url: string): Promise<boolean> {
  return fetch(`${url}/ipfs/nonsense`).then(
    () => true,
    () => false,
  )
}

export async function until(holds: () => boolean | Promise<boolean>, otherwise: string): Promise<void> {
  for (let tries = 0; !(await holds()); tries++) {
    assert.ok(tries < 1200, otherwise)
    await sleep(50)
  }
}
