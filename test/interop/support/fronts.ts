// nginx and Varnish before a gateway, with the very configurations that the documentation shows: only addresses and folders are put in.
import assert from 'node:assert/strict'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { connect } from 'node:net'
import { join } from 'node:path'
import { freePort, run, tempFolder } from './processes.ts'

export type Front = { readonly url: string; stop(): Promise<void> }

/** Of a page that says it once, so that a page that was rewritten fails the test and not its meaning. */
export function replaced(text: string, from: string, to: string): string {
  assert.equal(text.split(from).length, 2, `the page does not say ${from} once`)
  return text.replace(from, to)
}

async function shownBy(page: string, language: string): Promise<string[]> {
  const text = await readFile(new URL(`../../../docs/${page}`, import.meta.url), 'utf8')
  return [...text.matchAll(new RegExp(`\`\`\`${language}\\n([\\s\\S]*?)\`\`\``, 'g'))].map(([, part = '']) => part)
}

/** What surrounds the part of the page: as any nginx.conf has it, all of it in one folder. */
async function nginxConfiguration(behind: string, port: number, folder: string): Promise<string> {
  let [shown = '', ofUnix = ''] = await shownBy('behind-nginx.md', 'nginx')
  const isUnix = behind.startsWith('unix:')
  if (isUnix) shown = shown.replace(/upstream cidgate \{[^}]*\}\n/, ofUnix)
  shown = replaced(shown, '/var/cache/nginx/cidgate', join(folder, 'cache'))
  const written = isUnix ? 'unix:/run/cidgate/public.sock' : '127.0.0.1:8080'
  shown = replaced(shown, `server ${written};`, `server ${isUnix ? behind : new URL(behind).host};`)
  shown = replaced(shown, 'listen 80;', `listen 127.0.0.1:${port};`)
  const temp = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map((kind) => `${kind}_temp_path ${join(folder, kind)};`)
    .join('\n')
  return `${process.getuid?.() === 0 ? 'user root;' : ''}
daemon off; worker_processes 1; pid ${join(folder, 'pid')}; error_log stderr warn;
events { worker_connections 256; }
http { access_log off; ${temp}
${shown}}`
}

const answers = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })

/** `change`: for a test that shows what the page's configuration is there for. */
export async function startNginx(behind: string, change = (shown: string) => shown): Promise<Front> {
  const folder = await tempFolder()
  await mkdir(join(folder.path, 'cache'))
  const port = await freePort()
  const file = join(folder.path, 'nginx.conf')
  await writeFile(file, change(await nginxConfiguration(behind, port, folder.path)))
  const server = await run({ command: 'nginx', args: ['-p', folder.path, '-c', file], isReady: () => answers(port) })
  return { url: `http://127.0.0.1:${port}`, stop: () => stopping(server, folder) }
}

export async function startVarnish(behind: string): Promise<Front> {
  const folder = await tempFolder()
  const port = await freePort()
  const [shown = ''] = await shownBy('behind-varnish.md', 'vcl')
  const host = replaced(shown, '.host = "127.0.0.1"', `.host = "${new URL(behind).hostname}"`)
  const file = join(folder.path, 'default.vcl')
  await writeFile(file, replaced(host, '.port = "8080"', `.port = "${new URL(behind).port}"`))
  // Without its jail: as root it would become a user who may not read this folder.
  const where = ['-j', 'none', '-F', '-n', join(folder.path, 'work'), '-f', file, '-a', `127.0.0.1:${port}`]
  const small = ['vsl_space=8M', 'thread_pools=1', 'thread_pool_min=10'].flatMap((one) => ['-p', one])
  const args = [...where, '-s', 'malloc,64m', '-T', 'none', ...small]
  const server = await run({ command: 'varnishd', args, isReady: () => answers(port) })
  return { url: `http://127.0.0.1:${port}`, stop: () => stopping(server, folder) }
}

type Stops = { stop(): Promise<void> }
async function stopping(server: Stops, folder: { remove(): Promise<void> }): Promise<void> {
  await server.stop()
  await folder.remove()
}
