// The commands that a page of the documentation shows, run as they are printed: only addresses are put in, and for `npx cidgate`
// and `cidgate` there is the program of this clone.
import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { tempFolder } from './processes.ts'

export const root = fileURLToPath(new URL('../../../', import.meta.url))
const execute = promisify(execFile)

/** The shell commands of a page, block by block. */
export async function commandsOf(page: string): Promise<string[]> {
  const text = await readFile(join(root, page), 'utf8')
  return [...text.matchAll(/^```sh\n([\s\S]*?)^```$/gm)].map(([, block = '']) => block)
}

/** A gateway that runs, as a Served one. */
export type Running = { readonly url: string; readonly serving: { readonly admin?: string | undefined } }

export type Shell = {
  /** Where the commands run. */
  readonly path: string
  /** What they print; a command that fails is an error. */
  run(at: Running, commands: string | undefined, variables?: Record<string, string>): Promise<string>
  remove(): Promise<void>
}

export async function shellForPages(): Promise<Shell> {
  const folder = await tempFolder()
  for (const [name, skipped] of [
    ['npx', 'shift\n'],
    ['cidgate', ''],
  ] as const) {
    const file = join(folder.path, name)
    await writeFile(file, `#!/bin/sh\n${skipped}exec "${process.execPath}" "${root}bin/cidgate.mjs" "$@"\n`)
    await chmod(file, 0o755)
  }
  await writeFile(join(folder.path, 'cidgate.json'), JSON.stringify({ retrieval: { upstreams: [] } }))
  return {
    path: folder.path,
    async run(at, commands, variables = {}) {
      assert.ok(commands, 'the page has fewer commands')
      const admin = `http://${at.serving.admin}`
      const text = commands.replaceAll('http://127.0.0.1:8080', at.url).replaceAll('http://127.0.0.1:8081', admin)
      const env = {
        ...process.env,
        PATH: `${folder.path}:${process.env['PATH']}`,
        CIDGATE_GATEWAY: at.url,
        CIDGATE_ADMIN_URL: admin,
        CIDGATE_CONFIG: join(folder.path, 'cidgate.json'),
        ...variables,
      }
      const options = { cwd: folder.path, env, timeout: 60_000 }
      const { stdout } = await execute('bash', ['-euo', 'pipefail', '-c', text], options)
      return stdout
    },
    remove: () => folder.remove(),
  }
}

export async function upload({ url }: Pick<Running, 'url'>, bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  const form = new FormData()
  form.append('data', new Blob([bytes]))
  const answer = await fetch(`${url}/add`, { method: 'POST', body: form })
  const { cids } = (await answer.json()) as { cids: [string] }
  return cids[0]
}

export async function until(holds: () => Promise<boolean> | boolean, otherwise: string): Promise<void> {
  for (const end = Date.now() + 30_000; !(await holds()); ) {
    assert.ok(Date.now() < end, otherwise)
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

export type GatewayProcess = Running & {
  readonly pid: string
  /** What it prints from now on. */
  saying(what: RegExp): Promise<RegExpExecArray>
  stop(): Promise<void>
}

/** As a supervisor starts it. */
export async function startProcess(config: string): Promise<GatewayProcess> {
  const args = [join(root, 'bin/cidgate.mjs'), 'serve', '--config', config]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] })
  const closed = once(child, 'close')
  const saying = (what: RegExp) =>
    new Promise<RegExpExecArray>((resolve, reject) => {
      let text = ''
      const look = (piece: Buffer) => {
        text += piece
        const found = what.exec(text)
        if (found) resolve(found)
      }
      child.stdout.on('data', look)
      child.stderr.on('data', look)
      child.once('close', () => reject(new Error(text)))
    })
  const [line, pid = '', url = ''] = await saying(/\(pid (\d+)\): (http:\S+).*/)
  const [, admin] = /admin: http:\/\/([^\s)]+)/.exec(line) ?? []
  return {
    ...{ url, pid, serving: { admin }, saying },
    async stop() {
      child.kill('SIGKILL')
      await closed
    },
  }
}
